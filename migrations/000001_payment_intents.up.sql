-- The primary key leads with the merchant: it serves GET of one and, since a
-- UUIDv7 sorts by time, the newest-first list, with no second index.
create table payment_intents (
    merchant_id text           not null,
    id          uuid           not null,
    chain       text           not null,
    token       text           not null,
    payer       text           not null,
    merchant    text           not null,
    amount      numeric(78, 0) not null,
    state       text           not null,
    version     bigint         not null,
    reference   text,
    metadata    jsonb,
    tx_hash     text,
    created_at  timestamptz    not null,
    updated_at  timestamptz    not null,
    expires_at  timestamptz    not null,
    constraint payment_intents_pkey primary key (merchant_id, id),
    constraint payment_intents_amount_check
        check (amount >= 1 and amount <= 115792089237316195423570985008687907853269984665640564039457584007913129639935),
    constraint payment_intents_state_check
        check (state in ('created', 'authorized', 'settling', 'confirming',
                         'needs_review', 'settled', 'failed', 'canceled')),
    constraint payment_intents_version_check check (version >= 1),
    constraint payment_intents_expires_at_check check (expires_at > created_at)
);

-- What the sweeper looks for, and nothing else: the index stays as small as
-- the number of open intents.
create index payment_intents_due_idx on payment_intents (expires_at)
    where state = 'created';

-- One row for each change of state; creation is the intent's own row.
create table intent_transitions (
    merchant_id text        not null,
    intent_id   uuid        not null,
    version     bigint      not null,
    from_state  text        not null,
    to_state    text        not null,
    actor       text        not null,
    reason      text,
    tx_hash     text,
    at          timestamptz not null,
    constraint intent_transitions_pkey primary key (merchant_id, intent_id, version),
    constraint intent_transitions_intent_fkey
        foreign key (merchant_id, intent_id) references payment_intents (merchant_id, id),
    constraint intent_transitions_version_check check (version >= 2),
    constraint intent_transitions_actor_check
        check (actor in ('api', 'relayer', 'listener', 'operator', 'system'))
);
