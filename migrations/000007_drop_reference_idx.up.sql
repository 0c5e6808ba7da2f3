-- payment_intents_reference_merchant_idx serves whatever this one did.
drop index payment_intents_reference_idx;
