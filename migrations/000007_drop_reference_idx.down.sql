create index payment_intents_reference_idx on payment_intents (merchant_id, reference, id)
    where reference is not null;
