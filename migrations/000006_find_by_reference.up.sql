-- The reference first serves those who do not know the merchant, and a merchant's
-- list as well, where both are given. It takes the place of
-- payment_intents_reference_idx, so that a create costs no more. That one goes in
-- a file of its own: to drop it here the lock would have to grow, and would meet
-- those that have read the table and now wait to write to it.
create index if not exists payment_intents_reference_merchant_idx on payment_intents (reference, merchant_id, id)
    where reference is not null;
