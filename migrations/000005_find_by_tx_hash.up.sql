-- Operators look for an intent without knowing its merchant. A hash that was on
-- record once is in the trail for good, after a reorganisation of its chain too.
-- Only the steps that bring one pay for this.
--
-- Building an index holds off writes to its table for as long as it takes, and
-- concurrently it can not be built here (see migrations.go). So each table has a
-- file of its own: a step locks both, in an order that is not ours to choose, and
-- two locks in one transaction could wait for each other. And who has a large table
-- can make the index by hand before, concurrently: then it is there.
do $$
begin
  -- What a concurrent build leaves behind that was cut short serves nobody.
  if exists (select from pg_index where indexrelid = to_regclass('intent_transitions_tx_hash_idx') and not indisvalid) then
    drop index intent_transitions_tx_hash_idx;
  end if;
end
$$;
create index if not exists intent_transitions_tx_hash_idx on intent_transitions (tx_hash, merchant_id, intent_id)
    where tx_hash is not null;
