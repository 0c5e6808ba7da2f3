package pgapikey

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/apikey"
	"intentd/internal/pgtest"
	"intentd/internal/secret"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// connect returns a pool whose connections have a setting of their own.
func connect(t *testing.T, db, name, value string) *pgxpool.Pool {
	t.Helper()
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	pool, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func issue(t *testing.T, s *Store, h apikey.Holder, name string) (token secret.Text, key apikey.Key) {
	t.Helper()
	token, key, err := apikey.Issue(t.Context(), s, h, name)
	if err != nil {
		t.Fatal(err)
	}
	return token, key
}

func find(t *testing.T, s *Store, tokens ...secret.Text) []apikey.Found {
	t.Helper()
	var digests []apikey.Digest
	for _, token := range tokens {
		digests = append(digests, apikey.DigestOf(token))
	}
	found, err := s.Find(t.Context(), digests)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var shop = apikey.Holder{Merchant: "shop", Role: apikey.API, Mode: apikey.Live}

// TestStore runs the whole store over connections of every kind: as they are
// made by default, as poolers need them that share connections between clients,
// and with defaults that the statements are not made for.
func TestStore(t *testing.T) {
	t.Parallel()
	for _, setting := range []struct{ name, value string }{
		{"default_query_exec_mode", "cache_statement"},
		{"default_query_exec_mode", "exec"},
		{"default_query_exec_mode", "simple_protocol"},
		{"default_transaction_read_only", "on"},
		{"default_transaction_isolation", "serializable"},
		{"timezone", "Pacific/Kiritimati"}, // 14 hours ahead: another day than UTC's for most of it
		{"timezone", "Etc/GMT+12"},         // and 12 behind
	} {
		t.Run(setting.name+"="+strings.ReplaceAll(setting.value, "/", "_"), func(t *testing.T) {
			t.Parallel()
			t.Run("CreateAndFind", func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				s := New(connect(t, db.URL, setting.name, setting.value))
				before := pgtest.QueryVal[time.Time](t, db, "select clock_timestamp()")
				holders := []apikey.Holder{
					shop, {Merchant: "shop", Role: apikey.API, Mode: apikey.Test},
					{Merchant: "r.1", Role: apikey.Relayer, Mode: apikey.Live}, {Merchant: "L_-", Role: apikey.Listener, Mode: apikey.Live},
					{Merchant: strings.Repeat("m", 64), Role: apikey.Operator, Mode: apikey.Live},
				}
				for _, h := range holders {
					name := `a "name", it's {1} \ ünï 😀`
					token, key := issue(t, s, h, name)
					want := apikey.Key{ID: key.ID, Holder: h, Name: name, CreatedAt: key.CreatedAt}
					if diff := cmp.Diff(want, key); diff != "" || key.CreatedAt.Before(before) || key.CreatedAt.Location() != time.UTC {
						t.Errorf("created (-want +got):\n%s", diff)
					}
					found := find(t, s, token)
					if diff := cmp.Diff([]apikey.Found{{Key: key, Digest: apikey.DigestOf(token)}}, found); diff != "" {
						t.Errorf("found (-want +got):\n%s", diff)
					}
					stored := pgtest.QueryVal[[]byte](t, db, "select digest from api_keys where id = $1", uuid.UUID(key.ID))
					if want := apikey.DigestOf(token); !bytes.Equal(stored, want[:]) {
						t.Errorf("digest %x, want %x", stored, want)
					}
				}
				if n := pgtest.QueryVal[int](t, db, "select count(*) from api_keys where api_keys::text like '%sk\\_%'"); n != 0 {
					t.Error("a token is in the table")
				}
			})

			t.Run("FindMany", func(t *testing.T) {
				t.Parallel()
				s := New(connect(t, pgtest.New(t).URL, setting.name, setting.value))
				a, keyA := issue(t, s, shop, "a")
				b, keyB := issue(t, s, shop, "b")
				issue(t, s, shop, "c")
				want := []apikey.Found{{Key: keyA, Digest: apikey.DigestOf(a)}, {Key: keyB, Digest: apikey.DigestOf(b)}}
				byName := cmpopts.SortSlices(func(x, y apikey.Found) bool { return x.Name < y.Name })
				if diff := cmp.Diff(want, find(t, s, apikey.NewToken(apikey.Live), b, a), byName); diff != "" {
					t.Errorf("found (-want +got):\n%s", diff)
				}
				if got := find(t, s); len(got) != 0 {
					t.Errorf("nothing was asked for, and %v found", got)
				}
			})

			t.Run("List", func(t *testing.T) {
				t.Parallel()
				s := New(connect(t, pgtest.New(t).URL, setting.name, setting.value))
				_, a := issue(t, s, shop, "a")
				_, b := issue(t, s, apikey.Holder{Merchant: "shop2", Role: apikey.API, Mode: apikey.Live}, "b")
				_, c := issue(t, s, apikey.Holder{Merchant: "shop", Role: apikey.API, Mode: apikey.Test}, "c")
				c, _, err := s.Revoke(t.Context(), c.ID)
				if err != nil {
					t.Fatal(err)
				}
				for merchant, want := range map[string][]apikey.Key{"": {c, b, a}, "shop": {c, a}, "shop2": {b}, "sho": nil} {
					got, err := s.List(t.Context(), merchant)
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
						t.Errorf("List(%q): %v (-want +got):\n%s", merchant, err, diff)
					}
				}
			})

			t.Run("Revoke", func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				s := New(connect(t, db.URL, setting.name, setting.value))
				token, key := issue(t, s, shop, "")
				other, _ := issue(t, s, shop, "")
				revoked, again, err := s.Revoke(t.Context(), key.ID)
				if err != nil || again || revoked.RevokedAt.Before(key.CreatedAt) || revoked.RevokedAt.Location() != time.UTC {
					t.Errorf("Revoke = %+v, %t, %v", revoked, again, err)
				}
				second, again, err := s.Revoke(t.Context(), key.ID)
				if diff := cmp.Diff(revoked, second); diff != "" || !again || err != nil {
					t.Errorf("Revoke again = %t, %v (-first +second):\n%s", again, err, diff)
				}
				if found := find(t, s, token); len(found) != 1 || !found[0].Revoked() {
					t.Errorf("found %v, want the revoked key", found)
				}
				if found := find(t, s, other); len(found) != 1 || found[0].Revoked() {
					t.Errorf("found %v, want another key in force", found)
				}
				if _, _, err := s.Revoke(t.Context(), apikey.ID(uuid.Must(uuid.NewV7()))); !errors.Is(err, apikey.ErrNotFound) {
					t.Errorf("Revoke of none = %v, want ErrNotFound", err)
				}
			})

			t.Run("Touch", func(t *testing.T) {
				t.Parallel()
				db := pgtest.New(t)
				s := New(connect(t, db.URL, setting.name, setting.value))
				a, keyA := issue(t, s, shop, "")
				b, keyB := issue(t, s, shop, "")
				c, _ := issue(t, s, shop, "")
				today := func() time.Time { return pgtest.QueryVal[time.Time](t, db, "select (now() at time zone 'UTC')::date") }
				for range 2 {
					before := today()
					if err := s.Touch(t.Context(), []apikey.ID{keyA.ID, keyB.ID, keyA.ID, apikey.ID(uuid.Must(uuid.NewV7()))}); err != nil {
						t.Fatal(err)
					}
					for _, token := range []secret.Text{a, b} {
						got := find(t, s, token)[0]
						if !got.UsedToday || got.LastUsed.Before(before) || got.LastUsed.After(today()) || got.LastUsed.Location() != time.UTC {
							t.Errorf("used on %v (today: %t), want %v", got.LastUsed, got.UsedToday, before)
						}
					}
				}
				if got := find(t, s, c)[0]; got.UsedToday || !got.LastUsed.IsZero() {
					t.Errorf("one that was not used: %+v", got)
				}
				db.Exec(t, "update api_keys set last_used_on = last_used_on - 1")
				if got := find(t, s, a)[0]; got.UsedToday || got.LastUsed.IsZero() {
					t.Errorf("used yesterday: %+v", got)
				}
			})
		})
	}
}

func TestStore_Touch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(db.Pool)
	_, key := issue(t, s, shop, "")
	row := func() string {
		return pgtest.QueryVal[string](t, db, "select xmin::text || coalesce(last_used_on::text, '') from api_keys")
	}

	t.Run("WaitsForNobody", func(t *testing.T) { //nolint:paralleltest // the two share a key, whose last use both look at
		tx, err := db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "select from api_keys for update"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.Touch(ctx, []apikey.ID{key.ID}); err != nil {
			t.Fatal(err)
		}
		if found := pgtest.QueryVal[bool](t, db, "select last_used_on is null from api_keys"); !found {
			t.Error("a key that somebody was changing was touched")
		}
	})

	t.Run("OnceADay", func(t *testing.T) { //nolint:paralleltest // the two share a key, whose last use both look at
		if err := s.Touch(t.Context(), []apikey.ID{key.ID}); err != nil {
			t.Fatal(err)
		}
		before := row()
		if err := s.Touch(t.Context(), []apikey.ID{key.ID}); err != nil {
			t.Fatal(err)
		}
		if after := row(); after[len(after)-10:] == before[len(before)-10:] && after != before {
			t.Error("the row was written again on the same day")
		}
	})
}

// TestStore_Revoke has one revocation overtake another.
func TestStore_Revoke(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(connect(t, db.URL, "default_transaction_isolation", "serializable"))
	_, key := issue(t, s, shop, "")
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "update api_keys set revoked_at = '2026-01-01Z'"); err != nil {
		t.Fatal(err)
	}
	type result struct {
		key   apikey.Key
		again bool
		err   error
	}
	second := make(chan result, 1)
	go func() {
		key, again, err := s.Revoke(t.Context(), key.ID)
		second <- result{key, again, err}
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if pgtest.QueryVal[int](t, db, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the second does not wait for the first")
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-second; got.err != nil || !got.again || !got.key.RevokedAt.Equal(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("the second: %+v", got)
	}
}

func TestStore_Failed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "alter table api_keys rename to elsewhere")
	s := New(db.Pool)
	id := apikey.ID(uuid.Must(uuid.NewV7()))
	for name, call := range map[string]func() error{
		"Create": func() error { _, _, err := apikey.Issue(t.Context(), s, shop, ""); return err },
		"List":   func() error { _, err := s.List(t.Context(), ""); return err },
		"Revoke": func() error { _, _, err := s.Revoke(t.Context(), id); return err },
		"Find":   func() error { _, err := s.Find(t.Context(), []apikey.Digest{{}}); return err },
		"Touch":  func() error { return s.Touch(t.Context(), []apikey.ID{id}) },
	} {
		var pgErr *pgconn.PgError
		if err := call(); !errors.As(err, &pgErr) || pgErr.Code != "42P01" {
			t.Errorf("%s: error %v, want the driver's", name, err)
		}
	}
}

// TestSchema checks that the table refuses what the package would not make.
func TestSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, key := issue(t, New(db.Pool), shop, "")
	for constraint, set := range map[string]string{
		"api_keys_digest_check":   "digest = '\\x00'",
		"api_keys_merchant_check": "merchant = 'test:shop'",
		"api_keys_role_check":     "role = 'system'",
		"api_keys_mode_check":     "mode = 'demo'",
		"api_keys_name_check":     "name = repeat('ü', 101)",
	} {
		_, err := db.Pool.Exec(t.Context(), "update api_keys set "+set)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.ConstraintName != constraint {
			t.Errorf("%s: %v, want %s", set, err, constraint)
		}
	}
	_, err := db.Pool.Exec(t.Context(), `insert into api_keys
		select gen_random_uuid(), digest, merchant, role, mode, name, created_at from api_keys where id = $1`, uuid.UUID(key.ID))
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.ConstraintName != "api_keys_digest_key" {
		t.Errorf("one digest twice: %v", err)
	}
}

// TestDirectory has the two together, as the service uses them.
func TestDirectory(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := New(connect(t, db.URL, "default_query_exec_mode", "exec"))
	d := apikey.NewDirectory(s, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer d.Close()
	token, key := issue(t, s, shop, "")
	if holder, ok, err := d.Authenticate(t.Context(), token); holder != shop || !ok || err != nil {
		t.Fatalf("Authenticate = %v, %t, %v", holder, ok, err)
	}
	if _, ok, err := d.Authenticate(t.Context(), apikey.NewToken(apikey.Live)); ok || err != nil {
		t.Errorf("nobody's token: %t, %v", ok, err)
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waited in vain for %s", what)
			}
		}
	}
	eventually("its use to be on record", func() bool {
		return pgtest.QueryVal[bool](t, db, "select last_used_on is not null from api_keys")
	})
	if _, _, err := s.Revoke(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	eventually("its refusal", func() bool {
		_, ok, err := d.Authenticate(t.Context(), token)
		if err != nil {
			t.Error(err)
		}
		return !ok
	})
}
