-- What the service may do in its database, and no more: it owns nothing, changes
-- no table, and takes back no intent and no step. Run it as the owner of the
-- tables after every `api migrate up`; docs/operations.md has the roles.
begin;

-- What an older version of this file has granted goes.
revoke all on all tables in schema public from intentd_service;
grant usage on schema public to intentd_service;

grant select on schema_migrations to intentd_service;

grant select, insert, update (state, version, tx_hash, updated_at) on payment_intents to intentd_service;
grant select, insert on intent_transitions to intentd_service;

-- An answer on record is never changed. PostgreSQL wants the right to update some
-- column of who locks a row, as the sweeper does before it deletes.
grant select, insert, delete, update (expires_at) on idempotency_keys to intentd_service;

-- It can not let anybody in: `api keys` runs as the owner.
grant select, update (last_used_on) on api_keys to intentd_service;

commit;
