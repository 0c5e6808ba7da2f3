-- The reference first serves those who do not know the merchant, and a merchant's
-- list as well, where both are given. It takes the place of
-- payment_intents_reference_idx, so that a create costs no more. That one goes in
-- a file of its own: to drop it here the lock would have to grow, and would meet
-- those that have read the table and now wait to write to it.
do $$
begin
  -- What a concurrent build leaves behind that was cut short serves nobody.
  if exists (select from pg_index where indexrelid = to_regclass('payment_intents_reference_merchant_idx') and not indisvalid) then
    drop index payment_intents_reference_merchant_idx;
  end if;
end
$$;
create index if not exists payment_intents_reference_merchant_idx on payment_intents (reference, merchant_id, id)
    where reference is not null;
