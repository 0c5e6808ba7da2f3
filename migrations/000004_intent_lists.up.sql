-- Lists of a merchant's intents, newest first. The primary key serves those
-- without a filter and, since an id begins with its intent's created_at, those of
-- a range of time. A filter needs its own index where few rows match, or the list
-- would read all the others; id last keeps the order.
create index payment_intents_state_idx on payment_intents (merchant_id, state, id);
create index payment_intents_reference_idx on payment_intents (merchant_id, reference, id)
    where reference is not null;
