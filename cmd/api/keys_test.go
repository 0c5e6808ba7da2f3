package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/apikey"
	"intentd/internal/pgtest"
	"intentd/internal/secret"
	"intentd/migrations"
)

// told is a key as -json tells it.
type told map[string]any

// keysJSON runs a keys command that must end well and reads its one JSON value.
func keysJSON[T any](t *testing.T, environ []string, args ...string) (v T) {
	t.Helper()
	code, out, diag := call(t, environ, append([]string{"keys"}, args...)...)
	if code != 0 {
		t.Fatalf("keys %q: exit code %d, %s", args, code, diag)
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || strings.Count(out, "\n") != 1 {
		t.Fatalf("keys %q told %q, want one line of JSON", args, out)
	}
	return v
}

type toldList struct{ Data []told }

func TestKeys(t *testing.T) {
	t.Parallel()

	t.Run("OfAMerchant", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t) // they migrate
		environ := []string{"DATABASE_URL=" + db.URL}
		if code, out, diag := call(t, environ, "keys", "list"); code != 0 || out != "" || !strings.Contains(diag, "no keys") {
			t.Errorf("list of none: exit code %d, %q, %q", code, out, diag)
		}
		if list := keysJSON[map[string]any](t, environ, "list", "-json"); fmt.Sprint(list) != "map[data:[]]" {
			t.Errorf("list -json of none: %v", list)
		}
		wantSchema(t, db)

		members := []string{"created_at", "id", "last_used_on", "merchant", "mode", "name", "revoked_at", "role"}
		live := keysJSON[told](t, environ, "create", "-merchant", "shop", "-name", `web <"1">`, "-json")
		if diff := cmp.Diff(slices.Sorted(slices.Values(append(slices.Clone(members), "token"))), slices.Sorted(maps.Keys(live))); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
		test := keysJSON[told](t, environ, "create", "-json", "-test", "-role=relayer", "-merchant=shop")
		for _, tt := range []struct {
			key              told
			mode             apikey.Mode
			role, name, form string
		}{{live, apikey.Live, "api", `web <"1">`, "sk_live_"}, {test, apikey.Test, "relayer", "", "sk_test_"}} {
			token := tt.key["token"].(string)
			if mode, ok := apikey.ParseToken(secret.New(token)); !ok || mode != tt.mode || !strings.HasPrefix(token, tt.form) {
				t.Errorf("token %q: %q, %t", token, mode, ok)
			}
			if tt.key["merchant"] != "shop" || tt.key["role"] != tt.role || tt.key["mode"] != string(tt.mode) || tt.key["name"] != tt.name ||
				tt.key["revoked_at"] != nil || tt.key["last_used_on"] != nil {
				t.Errorf("%v", tt.key)
			}
			if created := tt.key["created_at"].(string); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`).MatchString(created) {
				t.Errorf("created_at %q", created)
			}
			if n := pgtest.QueryVal[int](t, db, "select count(*) from api_keys where digest = sha256($1::text::bytea)", token); n != 1 {
				t.Errorf("%d rows with the token's digest", n)
			}
			delete(tt.key, "token")
		}

		other := keysJSON[told](t, environ, "create", "-merchant", "other", "-json")
		delete(other, "token")
		if diff := cmp.Diff(toldList{[]told{other, test, live}}, keysJSON[toldList](t, environ, "list", "-json")); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(toldList{[]told{test, live}}, keysJSON[toldList](t, environ, "list", "-json", "-merchant", "shop")); diff != "" {
			t.Errorf("list of one (-want +got):\n%s", diff)
		}

		db.Exec(t, "update api_keys set last_used_on = '2026-03-01'")
		first := keysJSON[told](t, environ, "revoke", live["id"].(string), "-json")
		again := keysJSON[told](t, environ, "revoke", "-json", live["id"].(string))
		if first["already_revoked"] != false || again["already_revoked"] != true || first["last_used_on"] != "2026-03-01" {
			t.Errorf("revoked %v, and again %v", first, again)
		}
		delete(first, "already_revoked")
		delete(again, "already_revoked")
		listed := keysJSON[toldList](t, environ, "list", "-json").Data[2]
		if cmp.Diff(first, again) != "" || cmp.Diff(first, listed) != "" || listed["revoked_at"] == nil {
			t.Errorf("revoked %v, again %v, listed %v", first, again, listed)
		}
	})

	t.Run("ForPeople", func(t *testing.T) {
		t.Parallel()
		environ := []string{"DATABASE_URL=" + pgtest.New(t).URL}
		code, out, diag := call(t, environ, "keys", "create", "-merchant", "shop", "-role", "operator")
		form := regexp.MustCompile(`^id        (key_[0-9a-f]{32})
merchant  shop
role      operator
mode      live
name      -
token     (sk_live_[a-z2-7]{64})
$`)
		parts := form.FindStringSubmatch(out)
		if code != 0 || parts == nil || !strings.Contains(diag, "keep it now") || strings.Contains(diag, "sk_live_") {
			t.Fatalf("create: exit code %d, %q, %q", code, out, diag)
		}
		id, token := parts[1], parts[2]

		code, out, diag = call(t, environ, "keys", "list")
		form = regexp.MustCompile(`^ID +MERCHANT  ROLE      MODE  CREATED               LAST USED  REVOKED  NAME
` + id + `  shop      operator  live  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  -          -        -
$`)
		if code != 0 || !form.MatchString(out) {
			t.Errorf("list: exit code %d, %q, %q", code, out, diag)
		}
		for _, want := range []string{"is revoked", "was revoked already, at 20"} {
			if code, out, diag := call(t, environ, "keys", "revoke", id); code != 0 || !strings.Contains(out, id) || !strings.Contains(out, want) || diag != "" {
				t.Errorf("revoke: exit code %d, %q, %q; want %q", code, out, diag, want)
			}
		}
		if _, out, _ := call(t, environ, "keys", "list"); strings.Contains(out, token) || strings.Count(out, "Z  ") != 2 {
			t.Errorf("list afterwards: %q", out)
		}
	})

	t.Run("NoSuchKey", func(t *testing.T) {
		t.Parallel()
		const id = "key_0190163d8694739b8eb1f4f2b3b8ab00"
		code, out, diag := call(t, []string{"DATABASE_URL=" + pgtest.New(t).URL}, "keys", "revoke", id)
		if code != 1 || out != "" || !strings.Contains(diag, "there is no key "+id) {
			t.Errorf("exit code %d, %q, %q", code, out, diag)
		}
	})

	t.Run("Help", func(t *testing.T) {
		t.Parallel()
		for _, flag := range []string{"-h", "-help", "--help"} {
			for command, want := range map[string]string{
				"": "api keys create -merchant", "create": "-role R", "list": "last_used_on", "revoke": "within 5 seconds",
			} {
				args := []string{"keys", command, flag}
				if command == "" {
					args = []string{"keys", flag}
				}
				// It is told whatever else is wrong.
				if code, out, diag := call(t, []string{"API_STORE=no"}, args...); code != 0 || !strings.Contains(out, want) || diag != "" {
					t.Errorf("%q: exit code %d, %q, %q", args, code, out, diag)
				}
			}
		}
		for _, member := range []string{"id", "merchant", "role", "mode", "name", "created_at", "last_used_on", "revoked_at"} {
			if !strings.Contains(keysUsageOf["list"], "\n                  "+member+" ") {
				t.Errorf("the member %s is not documented", member)
			}
		}
	})

	t.Run("Mistakes", func(t *testing.T) {
		t.Parallel()
		token := apikey.NewToken(apikey.Live).Reveal()
		for args, want := range map[string][]string{
			"":                              {"one of create, list and revoke"},
			"make":                          {"one of create, list and revoke"},
			"create":                        {"-merchant must be 1 to 64"},
			"create -merchant a:b -role me": {"-merchant must be", "-role must be api, relayer, listener or operator"},
			"create -rol=x -merchant -json -x -test=no! now -name": {"there is no flag -rol", "there is no flag -x", "-test takes no value",
				"-merchant needs a value", "-name needs a value", "nothing can stand beside the flags"},
			"create -merchant a -name " + strings.Repeat("n", 101): {"-name must be at most 100 characters"},
			"list -merchant=":   {"-merchant must be"},
			"list all":          {"nothing can stand beside the flags"},
			"revoke":            {"one ID of a key is needed"},
			"revoke " + token:   {"one ID of a key is needed"},
			"revoke key_1 -yes": {"one ID of a key is needed", "there is no flag -yes"},
			"revoke key_0190163d8694739b8eb1f4f2b3b8ab00 key_0190163d8694739b8eb1f4f2b3b8ab01": {"one ID of a key is needed"},
		} {
			// The environment's mistakes are told in the same breath.
			code, out, diag := call(t, []string{"API_STORE=memory"}, append([]string{"keys"}, strings.Fields(args)...)...)
			if code != 2 || out != "" || strings.Contains(diag, token) || strings.Contains(diag, "flag provided") {
				t.Errorf("keys %s: exit code %d, %q, %q", args, code, out, diag)
			}
			for _, w := range want {
				if strings.Count(diag, w) != 1 {
					t.Errorf("keys %s: %q, want %q once", args, diag, w)
				}
			}
		}
	})

	t.Run("MemoryKeepsNone", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{"create", "-merchant", "m"}, {"list"}, {"revoke", "key_0190163d8694739b8eb1f4f2b3b8ab00"}} {
			if code, _, diag := call(t, []string{"API_STORE=memory"}, append([]string{"keys"}, args...)...); code != 2 || !strings.Contains(diag, "API_DEMO_KEYS") {
				t.Errorf("%q: exit code %d, %q", args, code, diag)
			}
		}
	})

	t.Run("LostToken", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		var diag strings.Builder
		err := run(t.Context(), []string{"keys", "create", "-merchant", "m"}, []string{"DATABASE_URL=" + db.URL}, closedPipe{}, &diag, func(net.Addr) {})
		id := strings.ReplaceAll(pgtest.QueryVal[string](t, db, "select 'key_' || id::text from api_keys"), "-", "")
		if err == nil || !strings.Contains(err.Error(), id) || strings.Contains(err.Error()+diag.String(), "sk_live_") {
			t.Errorf("%v, want the key's id; %q", err, diag.String())
		}
	})

	t.Run("DatabaseAway", func(t *testing.T) {
		t.Parallel()
		code, out, diag := call(t, []string{"DATABASE_URL=postgres://u:s3cr3t@127.0.0.1:1/d?connect_timeout=1"}, "keys", "create", "-merchant", "m")
		if code != 1 || out != "" || strings.Contains(diag, "s3cr3t") {
			t.Errorf("exit code %d, %q, %q", code, out, diag)
		}
	})
}

// closedPipe is a reader that has gone.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestKeys_PrivateServer runs the commands as processes in the directory of
// make api-run, before there is one, beside it and after it.
func TestKeys_PrivateServer(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	program := func(args ...string) (stdout string, err error) {
		cmd := exec.Command(os.Args[0], args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PG_BINDIR=" + os.Getenv("PG_BINDIR"), "HOME=" + os.Getenv("HOME"), asMain + "=1", "PWD=" + dir}
		var out, diag strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &diag
		if err = cmd.Run(); err != nil {
			err = fmt.Errorf("%q: %w: %s", args, err, diag.String())
		}
		return out.String(), err
	}
	count := func(want int) {
		t.Helper()
		out, err := program("keys", "list", "-json")
		if n := strings.Count(out, `"id"`); n != want || err != nil {
			t.Errorf("%d keys, want %d: %v", n, want, err)
		}
	}
	pidFile := filepath.Join(dir, dataDir, "postmaster.pid")

	for _, args := range [][]string{
		{"keys", "create", "-merchant", "before"}, {"keys", "list"}, {"keys", "revoke", "key_019ca9450a7b7c3d8e4f5a6b7c8d9e0f"},
		{"migrate", "version"}, {"migrate", "down"},
	} {
		out, err := program(args...)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || out != "" ||
			!strings.Contains(err.Error(), "there is no "+dataDir+" in this directory") || !strings.Contains(err.Error(), "DATABASE_URL is not set") {
			t.Errorf("%q where nobody ran api: %q, %v", args, out, err)
		}
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("the commands left %v, %v", left, err)
	}

	version := fmt.Sprintf("schema version %d of %d, clean\n", migrations.Latest(), migrations.Latest())
	if out, err := program("migrate", "up"); out != version || err != nil {
		t.Errorf("migrate up, which makes what it needs: %q, %v", out, err)
	}
	r := start(t, "PWD="+dir)
	first := r.post("K", example)
	count(0)
	if out, err := program("migrate", "version"); out != version || err != nil {
		t.Errorf("migrate version: %q, %v", out, err)
	}
	var wg sync.WaitGroup
	for range 4 { // at once
		wg.Go(func() {
			if _, err := program("keys", "create", "-merchant", "beside"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := r.post("K", example); !first.fresh() || !got.replayed() {
		t.Errorf("before the commands %v, after them %v", first, got)
	}
	r.stop(t)
	count(4)
	if out, err := program("migrate", "version"); out != version || err != nil {
		t.Errorf("migrate version after it: %q, %v", out, err)
	}
	if _, err := os.Stat(pidFile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server goes on without the command: %v", err)
	}
}
