-- A row is a request that has ended. The body is bytea and not json, because
-- it must come back byte for byte.
create table idempotency_keys (
    scope       text        not null,
    key         text        not null,
    fingerprint bytea       not null,
    status      smallint    not null,
    header      jsonb       not null,
    body        bytea       not null,
    created_at  timestamptz not null,
    expires_at  timestamptz not null,
    constraint idempotency_keys_pkey primary key (scope, key),
    constraint idempotency_keys_key_check check (octet_length(key) between 1 and 255),
    constraint idempotency_keys_fingerprint_check check (octet_length(fingerprint) = 32),
    constraint idempotency_keys_status_check check (status between 200 and 999),
    constraint idempotency_keys_expires_at_check check (expires_at > created_at)
) with (
    -- Every row is deleted a day after it came: vacuum early and in small steps.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

create index idempotency_keys_expires_at_idx on idempotency_keys (expires_at);
