drop table intent_transitions;
drop table payment_intents;
