package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/pgtest"
	"intentd/migrations"
)

// TestCases are faults that services like this one had, each with its
// neighbours: real processes, a real database.
func TestCases(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		test func(*testing.T, *pgtest.DB)
	}{
		{"01_AReplayLosesItsStatusOrHeaders", case01},
		{"02_CreatedInNanosecondsReadInMicroseconds", case02},
		{"03_APassingFailureIsRecordedAndReplayed", case03},
		{"04_ARefusedBodyAndItsKey", case04},
		{"05_CheckThenAct", case05},
		{"06_ACrashWedgesTheKey", case06},
		{"07_ASecondConnectionInsideTheTransaction", case07},
		{"08_ExpiredButNotYetDeleted", case08},
		{"09_TwoSweepersOneRow", case09},
		{"10_AKeyThatIsNotTheCallers", case10},
		{"11_ANULOrBadUTF8ReachesTheDatabase", case11},
		{"12_SomethingAfterTheJSONValue", case12},
		{"13_AnAmountIsReadNotRefused", case13},
		{"14_ALongOrOddKey", case14},
		{"15_ADurationWrapsRound", case15},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			c.test(t, db)
			wantPaired(t, db)
		})
	}
	t.Run("16_ReplicasMigrateAtOnce", case16)
}

func startOn(t *testing.T, db *pgtest.DB, env ...string) *replica {
	t.Helper()
	return start(t, append([]string{"DATABASE_URL=" + db.URL}, env...)...)
}

func case01(t *testing.T, db *pgtest.DB) {
	a, b := startOn(t, db), startOn(t, db)
	first := a.post("K", example)
	if !first.fresh() {
		t.Fatalf("first: %v", first)
	}
	for i, again := range []reply{a.post("K", example), b.post("K", example)} {
		if !again.replayed() {
			t.Errorf("replay %d: %v %v", i, again, again.header)
		}
		if diff := cmp.Diff(first.body, again.body); diff != "" {
			t.Errorf("replay %d (-first +again):\n%s", i, diff)
		}
		for _, name := range []string{"Content-Type", "Location"} {
			if diff := cmp.Diff(first.header.Values(name), again.header.Values(name)); diff != "" || first.header.Get(name) == "" {
				t.Errorf("replay %d, %s (-first +again):\n%s", i, name, diff)
			}
		}
	}
	// The answers of refusals are as faithful.
	refused := a.post("L", `{"chain":1}`)
	again := b.post("L", `{"chain":1}`)
	if refused.status != 400 || again.status != 400 || refused.body != again.body || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("refused: %v, replayed: %v", refused, again)
	}
}

func case02(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	form := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`)
	for i := range 200 {
		seconds := 1 + i*13001
		body := with("expires_in_seconds", fmt.Sprint(seconds))
		key := fmt.Sprintf("K%d", i)
		created, replay := r.post(key, body), r.post(key, body)
		read := r.get("/v1/payment_intents/" + created.id(t))
		if created.body != replay.body || created.body != read.body {
			t.Fatalf("POST, replay and GET differ:\n%s%s%s", created.body, replay.body, read.body)
		}
		var in struct {
			CreatedAt string `json:"created_at"`
			UpdatedAt string `json:"updated_at"`
			ExpiresAt string `json:"expires_at"`
		}
		if err := json.Unmarshal([]byte(created.body), &in); err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{in.CreatedAt, in.UpdatedAt, in.ExpiresAt} {
			if !form.MatchString(s) {
				t.Errorf("time %q has not six digits", s)
			}
		}
		from, _ := time.Parse(time.RFC3339Nano, in.CreatedAt)
		to, _ := time.Parse(time.RFC3339Nano, in.ExpiresAt)
		if got := to.Sub(from); got != time.Duration(seconds)*time.Second {
			t.Errorf("lives for %v, want %d s", got, seconds)
		}
	}
}

func case03(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	for i, broken := range []struct{ do, undo string }{
		{"alter table payment_intents rename to x", "alter table x rename to payment_intents"},
		{"alter table payment_intents rename column amount to x", "alter table payment_intents rename column x to amount"},
		{"alter table idempotency_keys rename to x", "alter table x rename to idempotency_keys"},
		{"alter table payment_intents add constraint x check (false) not valid", "alter table payment_intents drop constraint x"},
		{"alter table idempotency_keys add constraint x check (false) not valid", "alter table idempotency_keys drop constraint x"},
	} {
		key := fmt.Sprint("K", i)
		db.Exec(t, broken.do)
		failed := r.post(key, example)
		db.Exec(t, broken.undo)
		if failed.status != 503 || failed.code() != "unavailable" || failed.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %v", broken.do, failed)
		}
		wantNoSQL(t, failed)
		if n := pgtest.QueryVal[int](t, db, "select count(*) from idempotency_keys where key = $1", key); n != 0 {
			t.Errorf("%s: the failure is on record", broken.do)
		}
		if a := r.post(key, example); !a.fresh() {
			t.Errorf("%s: retry: %v", broken.do, a)
		}
		if a := r.post(key, example); !a.replayed() {
			t.Errorf("%s: second retry: %v", broken.do, a)
		}
	}
}

func case04(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	for i, refused := range []string{
		strings.Replace(example, `"100000000"`, `"abc"`, 1), `{}`, `[]`, ``, `{"chain":`, `null`,
	} {
		key := fmt.Sprint("K", i)
		first, again, good := r.post(key, refused), r.post(key, refused), r.post(key, example)
		if first.status != 400 || first.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("%q: %v", refused, first)
		}
		if again.status != 400 || again.header.Get("Idempotent-Replayed") != "true" || again.body != first.body {
			t.Errorf("%q again: %v", refused, again)
		}
		if good.status != 422 || good.code() != "idempotency_key_reused" {
			t.Errorf("a good body with the key of %q: %v", refused, good)
		}
	}
}

func case05(t *testing.T, db *pgtest.DB) {
	replicas := []*replica{startOn(t, db), startOn(t, db), startOn(t, db, "IDEMPOTENCY_COMMITTERS=0")}
	for round := range 100 {
		key := fmt.Sprint("K", round)
		replies := make([]reply, 50)
		var begin, done sync.WaitGroup
		begin.Add(1)
		for i := range replies {
			done.Go(func() {
				begin.Wait()
				replies[i] = replicas[i%len(replicas)].post(key, example)
			})
		}
		begin.Done()
		done.Wait()
		fresh := 0
		bodies := map[string]bool{}
		for _, a := range replies {
			switch {
			case a.fresh():
				fresh++
				bodies[a.body] = true
			case a.replayed():
				bodies[a.body] = true
			case a.status == 409 && a.code() == "idempotency_key_in_flight" && a.header.Get("Retry-After") == "1":
			default:
				t.Errorf("round %d: %v", round, a)
			}
		}
		if fresh != 1 || len(bodies) != 1 {
			t.Errorf("round %d: %d fresh answers and %d different bodies, want one of each", round, fresh, len(bodies))
		}
	}
	if n := pgtest.QueryVal[int](t, db, "select count(*) from payment_intents"); n != 100 {
		t.Errorf("%d intents for 100 keys", n)
	}
}

func case06(t *testing.T, db *pgtest.DB) {
	a, b := startOn(t, db), startOn(t, db)
	lock := holdTable(t, db)
	hung := make(chan reply)
	go func() { hung <- a.post("K", example) }()
	eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
	if got := b.post("K", example); got.status != 409 || got.code() != "idempotency_key_in_flight" {
		t.Errorf("while it runs: %v", got)
	}
	if got := b.post("K", with("amount", `"1"`)); got.status != 422 || strings.Contains(got.body, "fingerprint") {
		t.Errorf("another request while it runs: %v", got)
	}
	a.kill(t)
	if got := <-hung; got.status != 0 {
		t.Errorf("the killed replica answered %v", got)
	}
	lock.release()
	var got reply
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		if got = b.post("K", example); got.status != 409 {
			break
		}
		time.Sleep(100 * time.Millisecond) // as a client would
	}
	if !got.fresh() {
		t.Errorf("after the crash: %v", got)
	}
	if n := pgtest.QueryVal[int](t, db, "select count(*) from payment_intents"); n != 1 {
		t.Errorf("%d intents, want 1", n)
	}
}

func case07(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db, "DB_MAX_CONNS=2", "SWEEP_INTERVAL=10ms")
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if a := r.post(fmt.Sprint("K", i), example); !a.fresh() {
				t.Errorf("%v", a)
			}
		})
	}
	wg.Wait()
}

func case08(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db, "SWEEP_INTERVAL=1h")
	r.logged(t, "listening")
	first := r.post("K", example)
	db.Exec(t, "update idempotency_keys set created_at = created_at - interval '25 hours', expires_at = now() - interval '1 microsecond'")
	other := with("amount", `"7"`)
	second := r.post("K", other)
	if !first.fresh() || !second.fresh() || first.id(t) == second.id(t) {
		t.Errorf("first %v, after its time %v; want two fresh intents", first, second)
	}
	if again := r.post("K", other); !again.replayed() || again.body != second.body {
		t.Errorf("again: %v", again)
	}
	if !pgtest.QueryVal[bool](t, db, "select expires_at > now() + interval '23 hours' from idempotency_keys") {
		t.Error("the new record did not get a lifetime of its own")
	}
	// The first intent's record is gone, as it should be: leave a pair behind.
	db.Exec(t, "delete from payment_intents where id::text = replace($1, 'pi_', '')::uuid::text", first.id(t))
}

func case09(t *testing.T, db *pgtest.DB) {
	const due = 3000
	db.Exec(t, `insert into payment_intents
		select 'm', gen_random_uuid(), 'evm:1', '0x1', '0x2', '0x3', 1, 'created', 1, null, null, null, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 second'
		from generate_series(1, $1)`, due)
	db.Exec(t, `insert into payment_intents
		select 'm', gen_random_uuid(), 'evm:1', '0x1', '0x2', '0x3', 1, 'created', 1, null, null, null, now(), now(), now() + interval '1 hour'
		from generate_series(1, 10)`)
	for range 4 {
		startOn(t, db, "SWEEP_INTERVAL=10ms", "SWEEP_BATCH=50")
	}
	eventually(t, "not all due intents are canceled", func() bool {
		return pgtest.QueryVal[int](t, db, "select count(*) from payment_intents where state = 'canceled'") >= due
	})
	for what, sql := range map[string]string{
		"intents that are canceled, at version 2": "select count(*) from payment_intents where state = 'canceled' and version = 2",
		"intents canceled at all":                 "select count(*) from payment_intents where state <> 'created'",
		"rows in the trail":                       "select count(*) from intent_transitions",
		"right rows in the trail": `select count(*) from intent_transitions
			where version = 2 and from_state = 'created' and to_state = 'canceled' and actor = 'system' and reason = 'expired'`,
	} {
		if n := pgtest.QueryVal[int](t, db, sql); n != due {
			t.Errorf("%s: %d, want %d", what, n, due)
		}
	}
	db.Exec(t, "delete from intent_transitions")
	db.Exec(t, "delete from payment_intents") // they came without records
}

func case10(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	theirs := with("amount", `"777777"`)
	a, b := r.postAs(token, "K", example), r.postAs(otherToken, "K", theirs)
	if !a.fresh() || !b.fresh() || a.id(t) == b.id(t) {
		t.Fatalf("%v, %v; want two fresh intents", a, b)
	}
	none := r.get("/v1/payment_intents/pi_0190163d8694739b8eb1f4f2b3b8ab00")
	if got := r.get("/v1/payment_intents/" + b.id(t)); got.status != 404 || got.body != none.body {
		t.Errorf("another merchant's intent: %v, none: %v; want the same 404", got, none)
	}
	if got := r.get("/v1/payment_intents/" + a.id(t)); got.status != 200 {
		t.Errorf("the own intent: %v", got)
	}
	if got := r.postAs(token, "K", theirs); got.status != 422 || strings.Contains(got.body, "777777") {
		t.Errorf("their body with the own key: %v", got)
	}
	if got := r.postAs(otherToken, "K", theirs); !got.replayed() || got.body != b.body {
		t.Errorf("their replay: %v", got)
	}
}

func case11(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	n := 0
	for _, member := range []string{"chain", "token", "payer", "merchant", "amount", "reference", "metadata"} {
		for _, bad := range []string{`\u0000`, "\x00", "\xff", "\xc3\x28", "\xed\xa0\x80", `\ud800`, `\udc00\ud800`, `\u0085`, "\u0085", `\u007f`, `\n`} {
			n++
			values := []string{`"` + bad + `"`, `"x` + bad + `y"`}
			if member == "metadata" {
				values = []string{`{"` + bad + `":"v"}`, `{"n":"` + bad + `"}`}
			}
			for i, value := range values {
				got := r.post(fmt.Sprintf("K%d-%d", n, i), with(member, value))
				if got.status != 400 {
					t.Errorf("%s: %q: %v", member, value, got)
				}
				wantNoSQL(t, got)
			}
		}
	}
	if got := r.post("U", with("reference", `"ünïcödé 😀 \ud83d\ude00 \u0000"`)); got.status != 400 {
		t.Errorf("NUL at the end: %v", got)
	}
	if got := r.post("V", with("reference", `"ünïcödé 😀 \ud83d\ude00 \\u0000"`)); !got.fresh() {
		t.Errorf("no control character at all: %v", got)
	}
}

func case12(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	for i, after := range []string{"{}", "x", "]", "}", ",", "null", "\n" + example, "\x00", "//", "\ufeff"} {
		if got := r.post(fmt.Sprint("K", i), example+after); got.status != 400 || got.code() != "invalid_json" {
			t.Errorf("%q after the value: %v", after, got)
		}
	}
	for i, around := range []string{example + "\n", " \t\r\n" + example + " \t\r\n"} {
		if got := r.post(fmt.Sprint("L", i), around); !got.fresh() {
			t.Errorf("white space around the value: %v", got)
		}
	}
	if got := r.post("M", "\ufeff"+example); got.status != 400 {
		t.Errorf("a byte order mark before the value: %v", got)
	}
}

func case13(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	const largest = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
	refused := []string{
		`"0100"`, `"0x10"`, `"1_000"`, `"+5"`, `"-0"`, `"-1"`, `"1e18"`, `"0"`, `""`, `" 1"`, `"1 "`, `"1.0"`, `"1,000"`, `"١"`, `"１"`, `"NaN"`, `"Infinity"`,
		`100`, `1e3`, `null`, `true`, `[]`, `["1"]`, `{}`, `"` + strings.Repeat("9", 78) + `"`, `"1` + strings.Repeat("0", 78) + `"`,
		`"115792089237316195423570985008687907853269984665640564039457584007913129639936"`, `"` + strings.Repeat("9", 60_000) + `"`, strings.Repeat("9", 60_000),
	}
	for i, amount := range refused {
		got := r.post(fmt.Sprint("K", i), with("amount", amount))
		if got.status != 400 || got.code() != "invalid_request" || !strings.Contains(got.body, "amount") || len(got.body) > 300 {
			t.Errorf("amount %.90s: %.300v", amount, got)
		}
	}
	for i, amount := range []string{"1", "9007199254740993", "18446744073709551616", largest} {
		got := r.post(fmt.Sprint("L", i), with("amount", `"`+amount+`"`))
		if !got.fresh() || !strings.Contains(got.body, `"amount":"`+amount+`"`) {
			t.Errorf("amount %s: %v", amount, got)
		}
		if read := r.get("/v1/payment_intents/" + got.id(t)); read.body != got.body {
			t.Errorf("read back: %v", read)
		}
	}
}

func case14(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	const odd = `!#$%&'()*+,-./:;<=>?@[\]^_{|}~"`
	long := strings.Repeat("k", 255)
	for _, key := range []string{long, odd, `a"b`, "0", `"` + strings.Repeat("q", 255) + `"`} {
		if got := r.post(key, example); !got.fresh() {
			t.Errorf("key %q: %v", key, got)
		}
	}
	for _, key := range []string{
		long + "k", strings.Repeat("k", 3000), "", " ", `""`, `"`, `"k`, `"k"x`, `"k\x"`, `"k"; a=1`, "a b", `"a b"`, "a\tb", "\xff", "k\xc3\xa9", `"` + strings.Repeat("q", 256) + `"`,
	} {
		if got := r.post(key, example); got.status != 400 || got.code() != "idempotency_key_invalid" {
			t.Errorf("key %.40q: %v", key, got)
		}
	}
	bare, quoted := r.post("k", example), r.post(`"k"`, example)
	if !bare.fresh() || !quoted.replayed() || bare.body != quoted.body {
		t.Errorf("bare %v, quoted %v; want one key", bare, quoted)
	}
	escaped, plain := r.post(`"a\"b\\c"`, example), r.post(`a"b\c`, example)
	if !escaped.fresh() || !plain.replayed() {
		t.Errorf("escaped %v, plain %v; want one key", escaped, plain)
	}
	if got := r.do(http.MethodPost, "/v1/payment_intents", example, "Authorization", "Bearer "+token); got.code() != "idempotency_key_required" {
		t.Errorf("no key: %v", got)
	}
	for _, second := range []string{"two", "one"} {
		got := r.do(http.MethodPost, "/v1/payment_intents", example, "Authorization", "Bearer "+token, "Idempotency-Key", "one", "Idempotency-Key", second)
		if got.code() != "idempotency_key_invalid" {
			t.Errorf("two header lines: %v", got)
		}
	}
}

func case15(t *testing.T, db *pgtest.DB) {
	r := startOn(t, db)
	for i, value := range []string{
		"18446744975", "9223372037", "9223372036854775807", "9223372036854775808", "-9223372036854775809", strings.Repeat("9", 1000),
		"0", "-0", "-1", "900.5", "900.0", `"900"`, "1e2", "9E2", "2592001", "true", "null", "[]", "{}",
	} {
		got := r.post(fmt.Sprint("K", i), with("expires_in_seconds", value))
		if got.status != 400 || got.code() != "invalid_request" || !strings.Contains(got.body, "expires_in_seconds") {
			t.Errorf("expires_in_seconds %.40s: %v", value, got)
		}
	}
	for _, value := range []string{"1", "900", "2592000"} {
		if got := r.post("L"+value, with("expires_in_seconds", value)); !got.fresh() {
			t.Errorf("expires_in_seconds %s: %v", value, got)
		}
		// Exactly: case 2 checks the arithmetic.
	}
}

func case16(t *testing.T) {
	t.Parallel()
	t.Run("AllBecomeReady", func(t *testing.T) {
		t.Parallel()
		for range 10 {
			db := pgtest.Empty(t)
			var replicas []*replica
			for range 5 {
				replicas = append(replicas, launch(t, "DATABASE_URL="+db.URL))
			}
			for _, r := range replicas {
				r.url = "http://" + r.logged(t, "listening")["addr"].(string)
				eventually(t, "a replica is not ready", func() bool { return r.get("/readyz").status == 200 })
			}
			wantSchema(t, db)
			for _, r := range replicas {
				r.stop(t)
			}
		}
	})
	t.Run("OneIsKilledInTheMiddle", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		// Another session has made the table and not committed: the migration
		// waits inside its first statement.
		lock := hold(t, db, "create table payment_intents (x int)")
		a := launch(t, "DATABASE_URL="+db.URL)
		eventually(t, "the migration does not wait", func() bool { return waiting(t, db, "create table payment_intents") > 0 })
		a.kill(t)
		b := launch(t, "DATABASE_URL="+db.URL)
		lock.release()
		b.url = "http://" + b.logged(t, "listening")["addr"].(string)
		eventually(t, "the next replica is not ready", func() bool { return b.get("/readyz").status == 200 })
		wantSchema(t, db)
		if got := b.post("K", example); !got.fresh() {
			t.Errorf("create: %v", got)
		}
	})
}

func wantSchema(t *testing.T, db *pgtest.DB) {
	t.Helper()
	var got struct {
		Version int64
		Dirty   bool
	}
	err := db.Pool.QueryRow(t.Context(), "select version, dirty from schema_migrations").Scan(&got.Version, &got.Dirty)
	if err != nil || got.Dirty || got.Version != int64(migrations.Latest()) {
		t.Errorf("schema %+v, %v; want version %d, clean", got, err, migrations.Latest())
	}
}

// with returns the example with another value for one member.
func with(member, value string) string {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(example), &m); err != nil {
		panic(err)
	}
	var b strings.Builder
	b.WriteString("{")
	for _, name := range []string{"chain", "token", "payer", "merchant", "amount", "expires_in_seconds"} {
		if name != member {
			fmt.Fprintf(&b, "%q:%s,", name, m[name])
		}
	}
	fmt.Fprintf(&b, "%q:%s}", member, value)
	return b.String()
}

// wantNoSQL checks that an answer tells nothing of what is behind it.
func wantNoSQL(t *testing.T, a reply) {
	t.Helper()
	for _, word := range []string{"SQLSTATE", "payment_intents\"", "idempotency_keys", "relation", "constraint", "insert", "pgx", "goroutine"} {
		if strings.Contains(a.body, word) {
			t.Errorf("the answer tells of %q: %v", word, a)
		}
	}
}

// held is a transaction that is open elsewhere.
type held struct{ release func() }

// hold runs sql in a transaction and keeps it open until release.
func hold(t *testing.T, db *pgtest.DB, sql string) held {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	release := sync.OnceFunc(func() { _ = tx.Rollback(t.Context()) })
	t.Cleanup(release)
	return held{release}
}

// holdTable keeps creates waiting.
func holdTable(t *testing.T, db *pgtest.DB) held {
	t.Helper()
	return hold(t, db, "lock table payment_intents in share mode")
}

// create begins the statement by which a create can wait.
const create = "insert into payment_intents"

// waiting returns how many sessions wait for a lock on a table with such a
// statement. The sweeper's may wait as well.
func waiting(t *testing.T, db *pgtest.DB, statement string) int {
	t.Helper()
	return pgtest.QueryVal[int](t, db, `
select count(*)
from pg_stat_activity
where datname = current_database()
  and pid <> pg_backend_pid()
  and wait_event_type = 'Lock'
  and wait_event <> 'advisory'
  and position($1 in query) > 0`, statement)
}
