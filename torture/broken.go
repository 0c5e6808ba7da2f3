package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// breakage is a fault put into the service on purpose, to see that a check finds
// it. Its files are replaced while building only.
type breakage struct {
	about string
	edits []edit
	sql   []string // run on the migrated schema
}

// edit replaces one text of a file of the service's. The text must be there, so
// that a breakage that has come to break nothing is noticed.
type edit struct{ file, old, new string }

const (
	pgidem      = "internal/idempotency/pgidem/pgidem.go"
	group       = "internal/idempotency/pgidem/group.go"
	committers  = "internal/idempotency/pgidem/committers.go"
	middleware  = "internal/idempotency/middleware.go"
	pgintent    = "internal/intent/pgintent/store.go"
	refusal     = "internal/api/problem.go"
	claimLua    = "internal/idempotency/redisidem/claim.lua"
	completeLua = "internal/idempotency/redisidem/complete.lua"
)

var (
	// Both paths: a request's own transaction, and one that requests share.
	forgetLock = []edit{
		{pgidem, `       case
         when not pg_try_advisory_xact_lock($2) then 0
         when not pg_try_advisory_xact_lock($3) then 1
         else 2
       end`, `       case
         when $2::bigint is null or $3::bigint is null then 0
         else 2
       end`},
		{group, `select case
         when not pg_try_advisory_xact_lock(k.request) then 0
         when not pg_try_advisory_xact_lock(k.key) then 1
         else 2
       end`, `select case
         when k.request is null or k.key is null then 0
         else 2
       end`},
		noMeeting,
	}
	// Copies of a request do not meet in this process's memory.
	noMeeting = edit{committers, "if m == nil || m.dbTells || m.late() {", "if true {"}
	// The record is read from the snapshot that the statement of the locks began
	// with, as it would be in one fused statement; some time between the two
	// makes the race a frequent one.
	wrongOrder = []edit{
		{pgidem, "begin isolation level read committed read write", "begin isolation level repeatable read read write"},
		{pgidem, "set_config('client_connection_check_interval', '500', true)", lateCheck},
		{group, "set_config('client_connection_check_interval', '500', true)", lateCheck},
	}
	ignoreHolder   = edit{claimLua, "if lease_end and now < tonumber(lease_end) then", "if false then"}
	lateCheck      = "set_config('client_connection_check_interval', case when pg_sleep(random() * 0.1)::text is null then '' else '500' end, true)"
	dropConstraint = []string{"alter table idempotency_keys drop constraint idempotency_keys_pkey"}
)

// breakages are all of them, by name. Those that end in -alone are caught by the
// service's other mechanism, and so break nothing.
var breakages = map[string]breakage{
	"outside": {
		about: "the intent is committed outside the attempt's transaction",
		edits: []edit{{"cmd/api/backend.go", `			return pgidem.FromContext(ctx)
		}),
		keys:    keys,`, `			_, _ = pgidem.FromContext(ctx)
			return nil, false
		}),
		keys:    keys,`}},
	},
	"unlocked": {
		about: "the lock is forgotten and the unique constraint dropped",
		edits: forgetLock, sql: dropConstraint,
	},
	"unlocked-alone":      {about: "the lock is forgotten", edits: forgetLock},
	"unconstrained-alone": {about: "the unique constraint is dropped", sql: dropConstraint},
	"fused": {
		about: "the record is read from a snapshot older than the lock, and the unique constraint dropped",
		edits: wrongOrder, sql: dropConstraint,
	},
	"fused-alone": {about: "the record is read from a snapshot older than the lock", edits: wrongOrder},
	"early": {
		about: "the answer is sent although the attempt did not become permanent",
		edits: []edit{{middleware, "if err = l.complete(ctx, attempt, resp); err == nil {",
			"if err = l.complete(ctx, attempt, resp); err == nil || !errors.Is(err, ErrTaken) {"}},
	},
	"session": {
		about: "the lock belongs to the session and not to the transaction",
		edits: []edit{
			{pgidem, "pg_try_advisory_xact_lock($2)", "pg_try_advisory_lock($2)"},
			{group, "pg_try_advisory_xact_lock(k.request)", "pg_try_advisory_lock(k.request)"},
		},
	},
	"told": {
		about: "what a group could not commit is answered as if it had",
		edits: []edit{{group, "err = g.keep(e.completed, e.late)\n", "_ = g.keep(e.completed, e.late)\n"}},
	},
	"bare": {
		about: "an answer that says try again does not say when, and a passing fault is a 500",
		edits: []edit{
			{refusal, `h.Set("Retry-After", strconv.Itoa(p.retryAfter))`, `h.Del("Retry-After")`},
			{"internal/idempotency/refusal.go", `Refusal{Status: http.StatusServiceUnavailable`, `Refusal{Status: http.StatusInternalServerError`},
		},
	},
	"ajar": {about: "in Redis, a key that is held is given to another", edits: []edit{ignoreHolder}},
	"unfenced": {
		about: "so it is, and who lost it completes all the same",
		edits: []edit{ignoreHolder, {completeLua, "if h[1] ~= ARGV[1] then", "if false then"}},
	},
	"hasty": {
		about: "the sweeper cancels half a second before the time",
		edits: []edit{{pgintent, "and expires_at <= transaction_timestamp()", "and expires_at <= transaction_timestamp() + interval '500 ms'"}},
	},
}

// overlay writes the replaced files into dir, and the file that go build reads.
func (b breakage) overlay(service, dir string) (string, error) {
	texts := make(map[string]string)
	for _, e := range b.edits {
		if texts[e.file] == "" {
			raw, err := os.ReadFile(filepath.Join(service, e.file))
			if err != nil {
				return "", err
			}
			texts[e.file] = string(raw)
		}
		if strings.Count(texts[e.file], e.old) != 1 {
			return "", fmt.Errorf("%s no longer has, once, what is to be broken: %q", e.file, e.old)
		}
		texts[e.file] = strings.Replace(texts[e.file], e.old, e.new, 1)
	}
	if len(texts) == 0 {
		return "", nil
	}
	var replace struct{ Replace map[string]string }
	replace.Replace = make(map[string]string)
	var errs []error
	for file, text := range texts {
		from, err := filepath.Abs(filepath.Join(service, file))
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		replace.Replace[from] = to
		errs = append(errs, err, os.WriteFile(to, []byte(text), 0o644))
	}
	raw, err := json.Marshal(replace)
	path := filepath.Join(dir, "overlay.json")
	return path, errors.Join(append(errs, err, os.WriteFile(path, raw, 0o644))...)
}
