package apikey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"intentd/internal/secret"
)

// records is a Store in memory that can be slow, fail and count. Its clock is the
// bubble's.
type records struct {
	Store // what a Directory does not use

	mu       sync.Mutex
	keys     map[Digest]Key
	asked    [][]Digest // by Find, one after the other
	touched  [][]ID     // by Touch
	running  int        // calls of Find
	most     int        // of them at once
	delay    time.Duration
	lag      time.Duration // from the end of a context to that of a call
	err      error         // of Find
	touchErr error
}

var shop = Holder{Merchant: "shop", Role: API, Mode: Live}

func (r *records) issue() (secret.Text, Digest) {
	token := NewToken(Live)
	digest := DigestOf(token)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == nil {
		r.keys = make(map[Digest]Key)
	}
	r.keys[digest] = Key{ID: ID(uuid.Must(uuid.NewV7())), Holder: shop, CreatedAt: time.Now()}
	return token, digest
}

func (r *records) revoke(digest Digest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.keys[digest]
	k.RevokedAt = time.Now()
	r.keys[digest] = k
}

func (r *records) set(delay time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay, r.err = delay, err
}

func (r *records) setTouch(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.touchErr = err
}

func (r *records) finds() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.asked)
}

func (r *records) touches() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.touched)
}

// Find takes its snapshot at once, and answers after the delay: the slowest that
// the interface allows.
func (r *records) Find(ctx context.Context, digests []Digest) ([]Found, error) {
	r.mu.Lock()
	r.asked = append(r.asked, digests)
	r.running++
	r.most = max(r.most, r.running)
	var found []Found
	for _, digest := range digests {
		if k, ok := r.keys[digest]; ok {
			found = append(found, Found{Key: k, Digest: digest, UsedToday: k.LastUsed.Equal(today())})
		}
	}
	delay, err := r.delay, r.err
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running--
	}()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		time.Sleep(r.lag)
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (r *records) Touch(_ context.Context, ids []ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.touched = append(r.touched, ids)
	if r.touchErr != nil {
		return r.touchErr
	}
	for digest, k := range r.keys {
		for _, id := range ids {
			if k.ID == id {
				k.LastUsed = today()
				r.keys[digest] = k
			}
		}
	}
	return nil
}

func today() time.Time { return time.Now().UTC().Truncate(24 * time.Hour) }

// directory runs test in a bubble with a Directory over an empty store. When the
// test returns, nothing of the Directory may be left, or the bubble fails it.
func directory(t *testing.T, test func(t *testing.T, d *Directory, r *records)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := new(records)
		d := NewDirectory(r, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})))
		defer d.Close()
		test(t, d, r)
	})
}

// want authenticates once and checks the answer and what it took.
func want(t *testing.T, d *Directory, token secret.Text, ok bool) {
	t.Helper()
	holder, got, err := d.Authenticate(t.Context(), token)
	if err != nil || got != ok || got && holder != shop {
		t.Fatalf("Authenticate = %v, %t, %v; want %t", holder, got, err, ok)
	}
}

var errAway = errors.New("the database is away")

func wantError(t *testing.T, d *Directory, token secret.Text) {
	t.Helper()
	if holder, ok, err := d.Authenticate(t.Context(), token); err == nil || ok || holder != (Holder{}) {
		t.Fatalf("Authenticate = %v, %t, %v; want an error", holder, ok, err)
	}
}

func TestDirectory_Authenticate(t *testing.T) {
	t.Parallel()

	t.Run("ANewKeyWorksAtOnce", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			for range 10 {
				token, _ := r.issue()
				want(t, d, token, true)
			}
		})
	})

	t.Run("WhatIsNoTokenIsNotAskedFor", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, _ := r.issue()
			text := token.Reveal()
			for _, s := range []string{"", "merchant-demo", text[1:], text + "a", "sk_test_" + text[8:]} {
				want(t, d, secret.New(s), false)
			}
			if n := r.finds(); n != 0 {
				t.Errorf("%d questions", n)
			}
		})
	})

	// The question of a minute's requests is asked once while anybody waits.
	t.Run("InUseNobodyWaits", func(t *testing.T) {
		t.Parallel()
		for _, every := range []time.Duration{10 * time.Millisecond, 3 * time.Second, 59 * time.Second, 9 * time.Minute} {
			directory(t, func(t *testing.T, d *Directory, r *records) {
				token, _ := r.issue()
				want(t, d, token, true)
				r.set(300*time.Millisecond, nil) // so that waiting would show
				for end := time.Now().Add(every + time.Minute); time.Now().Before(end); time.Sleep(every) {
					began := time.Now()
					want(t, d, token, true)
					if took := time.Since(began); took != 0 {
						t.Fatalf("every %v: a request waited %v", every, took)
					}
				}
			})
		}
	})

	t.Run("OneQuestionForAllThatWait", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, _ := r.issue()
			r.set(400*time.Millisecond, nil)
			impatient, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, _, err := d.Authenticate(impatient, token); !errors.Is(err, context.Canceled) {
					t.Errorf("the one that went = %v, want context.Canceled", err)
				}
			})
			synctest.Wait()
			for range 100 {
				wg.Go(func() { want(t, d, token, true) })
			}
			synctest.Wait()
			cancel()
			wg.Wait()
			if n := r.finds(); n != 1 {
				t.Errorf("%d questions, want 1", n)
			}
		})
	})

	t.Run("FewQuestionsAtOnce", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			r.set(10*time.Millisecond, nil)
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { want(t, d, NewToken(Live), false) })
			}
			wg.Wait()
			if r.most != lookups {
				t.Errorf("%d questions at once, want %d", r.most, lookups)
			}
		})
	})

	t.Run("ATokenOfNobodyIsAskedForOnceInFourSeconds", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token := NewToken(Live)
			for range 40 {
				want(t, d, token, false)
				time.Sleep(time.Second / 10)
			}
			if n := r.finds(); n != 1 {
				t.Errorf("%d questions, want 1", n)
			}
			want(t, d, token, false)
			if n := r.finds(); n != 2 {
				t.Errorf("%d questions after 4 s, want 2", n)
			}
		})
	})

	t.Run("WhatIsRememberedIsBounded", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := new(records)
			d := newDirectory(r, slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), 3, 2)
			defer d.Close()
			token, _ := r.issue()
			want(t, d, token, true)
			for range 10 {
				want(t, d, NewToken(Test), false)
			}
			if d.unknown.Len() != 2 || d.known.Len() != 1 {
				t.Errorf("%d known and %d unknown, want 1 and 2", d.known.Len(), d.unknown.Len())
			}
			for range 2 {
				other, _ := r.issue()
				want(t, d, other, true)
				want(t, d, token, true) // the one used last stays
			}
			asked := r.finds()
			for range 5 {
				other, _ := r.issue()
				want(t, d, other, true)
				want(t, d, token, true)
			}
			if n := r.finds() - asked; n != 5 || d.known.Len() != 3 {
				t.Errorf("%d questions and %d known, want 5 and 3", n, d.known.Len())
			}
		})
	})

	t.Run("AfterClose", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, _ := r.issue()
			other, _ := r.issue()
			third, _ := r.issue()
			want(t, d, token, true)
			r.set(time.Second, nil)
			r.lag = 100 * time.Millisecond
			var wg sync.WaitGroup
			wg.Go(func() { wantError(t, d, third) }) // asked for when it closes
			synctest.Wait()
			d.Close()
			if r.running != 0 {
				t.Errorf("%d questions go on", r.running)
			}
			wg.Wait()
			want(t, d, token, true)
			if _, _, err := d.Authenticate(t.Context(), other); !errors.Is(err, errClosed) {
				t.Errorf("a lookup = %v, want errClosed", err)
			}
			d.Close()
		})
	})
}

func TestDirectory_Revocation(t *testing.T) {
	t.Parallel()

	// Whatever the store's answers take, and whenever the key is used.
	for _, delay := range []time.Duration{0, 900 * time.Millisecond, 1900 * time.Millisecond} {
		for _, every := range []time.Duration{50 * time.Millisecond, 3999 * time.Millisecond} {
			t.Run(fmt.Sprintf("Delay%v_Every%v", delay, every), func(t *testing.T) {
				t.Parallel()
				directory(t, func(t *testing.T, d *Directory, r *records) {
					for i := range 30 {
						token, digest := r.issue()
						r.set(delay, nil)
						want(t, d, token, true)
						time.Sleep(time.Duration(i) * 171 * time.Millisecond)
						want(t, d, token, true)
						r.revoke(digest)
						revoked := time.Now()
						for {
							_, ok, err := d.Authenticate(t.Context(), token)
							if err != nil {
								t.Fatal(err)
							}
							if !ok {
								break
							}
							if age := time.Since(revoked); age > 4*time.Second {
								t.Fatalf("let in %v after it was revoked", age)
							}
							time.Sleep(every)
						}
						for range 100 { // and for good
							want(t, d, token, false)
							time.Sleep(every)
						}
					}
				})
			})
		}
	}

	// A refresh that hangs must not bring back what a request learnt meanwhile.
	t.Run("AnOlderAnswerThatComesLater", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, digest := r.issue()
			want(t, d, token, true)
			time.Sleep(refreshAge - time.Millisecond)
			r.set(900*time.Millisecond, nil)
			time.Sleep(2 * time.Millisecond)
			synctest.Wait() // the refresh has its snapshot
			r.revoke(digest)
			r.set(0, nil)
			d.mu.Lock()
			d.known.Remove(digest) // as if too old or pushed out
			d.mu.Unlock()
			want(t, d, token, false)
			time.Sleep(920 * time.Millisecond) // the older answer is there, and the next refresh is not
			want(t, d, token, false)
		})
	})

	// An answer says what was before it was given, by as much as it took.
	t.Run("AgeCountsFromTheQuestion", func(t *testing.T) {
		t.Parallel()
		for _, refreshed := range []bool{false, true} {
			directory(t, func(t *testing.T, d *Directory, r *records) {
				token, digest := r.issue()
				if refreshed {
					want(t, d, token, true)
					time.Sleep(refreshAge - time.Millisecond)
				}
				r.set(900*time.Millisecond, nil)
				go func() { want(t, d, token, true) }()
				time.Sleep(2 * time.Millisecond) // the question has been asked
				synctest.Wait()
				r.revoke(digest)
				time.Sleep(950 * time.Millisecond)
				r.set(0, errAway)
				want(t, d, token, true)
				time.Sleep(oldest - 951*time.Millisecond)
				wantError(t, d, token)
			})
		}
	})
}

func TestDirectory_Observed(t *testing.T) {
	t.Parallel()
	directory(t, func(t *testing.T, d *Directory, r *records) {
		var told []Lookup
		d.Observed(func(l Lookup) { told = append(told, l) })
		token, digest := r.issue()
		nobodys := NewToken(Live)
		want(t, d, token, true)
		want(t, d, token, true)
		want(t, d, nobodys, false)
		want(t, d, nobodys, false)
		want(t, d, secret.New("no-token"), false)
		r.set(0, errAway)
		wantError(t, d, NewToken(Live))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.set(time.Second, nil)
		if _, _, err := d.Authenticate(ctx, NewToken(Live)); !errors.Is(err, context.Canceled) {
			t.Errorf("Authenticate = %v, want context.Canceled", err)
		}
		r.set(0, nil)
		r.revoke(digest)
		time.Sleep(oldest + round)
		want(t, d, token, false)
		if !slices.Equal(told, []Lookup{Asked, Cached, Refused, Refused, Refused, Failed, Failed, Refused}) {
			t.Errorf("told %v", told)
		}
	})
}

func TestDirectory_StoreAway(t *testing.T) {
	t.Parallel()

	for name, away := range map[string]func(*records){
		"Fails":  func(r *records) { r.set(0, errAway) },
		"Silent": func(r *records) { r.set(time.Hour, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory(t, func(t *testing.T, d *Directory, r *records) {
				token, _ := r.issue()
				fresh, _ := r.issue()
				want(t, d, token, true)
				began := time.Now()
				away(r)
				wantError(t, d, fresh)
				if took := time.Since(began); took > lookupTimeout {
					t.Errorf("a request waited %v", took)
				}
				time.Sleep(time.Second)
				want(t, d, token, true)
				time.Sleep(3 * time.Second)
				wantError(t, d, token) // and not "nobody's"
				time.Sleep(10 * time.Minute)
				wantError(t, d, token)
				r.set(0, nil)
				want(t, d, token, true)
				want(t, d, fresh, true)
			})
		})
	}

	// One question lost is made good before anybody has to wait.
	t.Run("ForAMoment", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, _ := r.issue()
			want(t, d, token, true)
			r.set(time.Hour, nil)
			time.Sleep(1900 * time.Millisecond)
			r.set(0, nil)
			time.Sleep(time.Second)
			asked := r.finds()
			r.set(time.Hour, nil)
			time.Sleep(1500 * time.Millisecond)
			want(t, d, token, true)
			if asked < 3 {
				t.Errorf("%d questions, want a lost one and another", asked)
			}
		})
	})

	t.Run("IsLoggedOnce", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			r := new(records)
			var log strings.Builder
			d := NewDirectory(r, slog.New(slog.NewTextHandler(&log, nil)))
			token, _ := r.issue()
			want(t, d, token, true)
			time.Sleep(time.Second)
			r.set(0, errAway)
			time.Sleep(30 * time.Second)
			r.set(0, nil)
			time.Sleep(30 * time.Second)
			d.Close()
			if strings.Count(log.String(), "can not be refreshed") != 1 || strings.Count(log.String(), "refreshed again") != 1 ||
				strings.Count(log.String(), "\n") != 2 || strings.Contains(log.String(), token.Reveal()) {
				t.Errorf("the log:\n%s", log.String())
			}
		})
	})
}

func TestDirectory_Refresh(t *testing.T) {
	t.Parallel()

	t.Run("ManyKeysInOneQuestion", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			for range batch + 10 {
				token, _ := r.issue()
				want(t, d, token, true)
			}
			before := r.finds()
			time.Sleep(refreshAge + round)
			if n := r.finds() - before; n != 2 {
				t.Errorf("%d questions, want 2", n)
			}
		})
	})

	t.Run("NotForEver", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, _ := r.issue()
			want(t, d, token, true)
			want(t, d, NewToken(Live), false) // never refreshed
			time.Sleep(keptFor + time.Minute)
			before := r.finds()
			time.Sleep(time.Hour)
			if n := r.finds() - before; n != 0 {
				t.Errorf("%d questions for a key that nobody uses", n)
			}
			want(t, d, token, true)
		})
	})
}

func TestDirectory_LastUse(t *testing.T) {
	t.Parallel()

	t.Run("OnceADay", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, digest := r.issue()
			for day := range 3 {
				for range 50 { // nothing is on record of the day's beginning, nor twice of its rest
					want(t, d, token, true)
					time.Sleep(10 * time.Minute)
					synctest.Wait()
					if n := r.touches(); n != day+1 || !r.keys[digest].LastUsed.Equal(today()) {
						t.Fatalf("day %d: %d writes, last used %v at %v", day, n, r.keys[digest].LastUsed, time.Now())
					}
				}
				time.Sleep(time.Until(today().Add(24 * time.Hour)))
			}
			time.Sleep(72 * time.Hour) // unused
			if n := r.touches(); n != 3 {
				t.Errorf("%d writes, want 3", n)
			}
		})
	})

	t.Run("OnRecordAlready", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, digest := r.issue()
			if err := r.Touch(t.Context(), []ID{r.keys[digest].ID}); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				want(t, d, token, true)
				time.Sleep(time.Second)
			}
			if n := r.touches(); n != 1 {
				t.Errorf("%d writes, want 1", n)
			}
		})
	})

	t.Run("NotUsedSinceMidnight", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, digest := r.issue()
			time.Sleep(time.Until(today().Add(24*time.Hour - 2*time.Minute)))
			day := today()
			want(t, d, token, true)
			time.Sleep(5 * time.Minute) // it is still refreshed
			if n := r.touches(); n != 1 || !r.keys[digest].LastUsed.Equal(day) {
				t.Errorf("%d writes, last used %v; want 1, %v", n, r.keys[digest].LastUsed, day)
			}
		})
	})

	t.Run("InUseOverMidnight", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, digest := r.issue()
			time.Sleep(time.Until(today().Add(24*time.Hour - 10*time.Second)))
			for range 400 {
				want(t, d, token, true)
				time.Sleep(50 * time.Millisecond)
			}
			if n := r.touches(); n != 2 || !r.keys[digest].LastUsed.Equal(today()) {
				t.Errorf("%d writes, last used %v; want 2, %v", n, r.keys[digest].LastUsed, today())
			}
		})
	})

	t.Run("Fails", func(t *testing.T) {
		t.Parallel()
		directory(t, func(t *testing.T, d *Directory, r *records) {
			token, digest := r.issue()
			r.setTouch(errAway)
			for range 100 {
				want(t, d, token, true)
				time.Sleep(time.Second)
			}
			if n := r.touches(); n != 2 {
				t.Errorf("%d writes tried in 100 s, want 2", n)
			}
			r.setTouch(nil)
			time.Sleep(touchRetry)
			if n := r.touches(); n != 3 || !r.keys[digest].LastUsed.Equal(today()) {
				t.Errorf("%d writes, last used %v", n, r.keys[digest].LastUsed)
			}
		})
	})
}
