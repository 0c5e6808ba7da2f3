-- Whose a bearer token is. Of the token there is only its digest, so that who
-- reads this table can not use the API. A key is revoked and never deleted: what
-- a key has done must stay attributable.
create table api_keys (
    id           uuid        not null,
    digest       bytea       not null,
    merchant     text        not null,
    role         text        not null,
    mode         text        not null,
    name         text        not null,
    created_at   timestamptz not null,
    last_used_on date,
    revoked_at   timestamptz,
    constraint api_keys_pkey primary key (id),
    constraint api_keys_digest_key unique (digest),
    constraint api_keys_digest_check check (octet_length(digest) = 32),
    constraint api_keys_merchant_check check (merchant ~ '^[A-Za-z0-9._-]{1,64}$'),
    constraint api_keys_role_check check (role in ('api', 'relayer', 'listener', 'operator')),
    constraint api_keys_mode_check check (mode in ('live', 'test')),
    constraint api_keys_name_check check (char_length(name) <= 100)
);
