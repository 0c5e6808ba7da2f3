package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"intentd/internal/apikey"
	"intentd/internal/apikey/pgapikey"
	"intentd/migrations"
)

const keysUsage = `api keys makes, shows and revokes the keys that let clients in.

Usage:
  api keys create -merchant M [-role R] [-test] [-name N] [-json]
  api keys list [-merchant M] [-json]
  api keys revoke ID [-json]

Each tells more with -h. They use the database of the service, named in the same way (api -h), and bring its schema up
to date first. The service may be running.
`

// keysUsageOf has what each command tells with -h, by its name.
var keysUsageOf = map[string]string{
	"create": `api keys create makes a key and shows its token, which can not be shown again.

Usage:
  api keys create -merchant M [-role R] [-test] [-name N] [-json]

  -merchant M   whose key it is: 1 to 64 letters, digits, dots, dashes or underscores. In roles other than api it names
                the firm or the process
  -role R       api (the merchant's back end; the default), relayer, listener or operator
  -test         a test key: it and live keys do not see each other's payments
  -name N       to tell keys apart: at most 100 characters
  -json         tell it as one JSON object: the members of api keys list -json, and token

To replace a key without a gap, make a second one, use it, and revoke the first.
`,
	"list": `api keys list shows the keys there are, revoked ones included, newest first. No token is ever shown.

Usage:
  api keys list [-merchant M] [-json]

  -merchant M   only the keys of this merchant, live and test, in every role
  -json         tell it as one JSON object, {"data":[...]}, with a member for each key:
                  id            key_ and 32 hex digits
                  merchant      who holds it
                  role          api, relayer, listener or operator
                  mode          live or test
                  name          may be empty
                  created_at    RFC 3339, UTC, with six fractional digits
                  last_used_on  YYYY-MM-DD, the last day (UTC) on which it was used, or null
                  revoked_at    as created_at, or null while it is in force
`,
	"revoke": `api keys revoke puts a key out of force, for good. Every replica refuses it within 5 seconds.

Usage:
  api keys revoke ID [-json]

  ID      key_ and 32 hex digits, as api keys list shows it
  -json   tell it as one JSON object: the members of api keys list -json, and already_revoked

Revoking a key again changes nothing, and is no mistake.
`,
}

// keys runs one of the keys commands. A mistake in args or environ is a
// usageError that names every one.
func keys(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	k := &keysCommand{stdout: stdout, stderr: stderr}
	var run func(context.Context, apikey.Store) error
	name, rest := "", []string(nil)
	if len(args) > 0 {
		name, rest = args[0], args[1:]
	}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.BoolVar(&k.json, "json", false, "")
	switch name {
	case "create":
		run = k.create
		flags.StringVar(&k.holder.Merchant, "merchant", "", "")
		flags.StringVar((*string)(&k.holder.Role), "role", string(apikey.API), "")
		flags.BoolVar(&k.test, "test", false, "")
		flags.StringVar(&k.name, "name", "", "")
	case "list":
		run = k.list
		flags.StringVar(&k.holder.Merchant, "merchant", "", "")
	case "revoke":
		run = k.revoke
	case "-h", "-help", "--help", "help":
		_, err := io.WriteString(stdout, keysUsage)
		return err
	default:
		return usageError{errors.New("keys needs one of create, list and revoke: api keys -h")}
	}

	operands, mistakes, help := parseArgs(flags, rest)
	if help {
		_, err := io.WriteString(stdout, keysUsageOf[name])
		return err
	}
	mistakes = append(mistakes, k.check(name, flags, operands)...)
	c, err := parseConfig(environ)
	switch {
	case err != nil:
		mistakes = append(mistakes, err)
	case c.Store == storeMemory:
		mistakes = append(mistakes, errors.New("API_STORE=memory keeps no keys: name them in API_DEMO_KEYS"))
	}
	if len(mistakes) > 0 {
		return usageError{fmt.Errorf("keys %s: %w", name, errors.Join(mistakes...))}
	}

	// A key in a database that nobody serves is of no use.
	db, err := openExisting(ctx, c, newLogger(c, stderr))
	if err != nil {
		return err
	}
	defer db.close()
	if err := migrations.Up(ctx, db.url.Reveal()); err != nil {
		return err
	}
	pool, err := openPool(ctx, db.url, 1, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	return run(ctx, pgapikey.New(pool))
}

// parseArgs reads flags and operands in any order, and returns the operands. Its
// errors are one for each flag that can not be read, and hold no value.
func parseArgs(flags *flag.FlagSet, args []string) (operands []string, mistakes []error, help bool) {
	flags.SetOutput(io.Discard)
	flags.Usage = func() {}
	for len(args) > 0 {
		err := flags.Parse(args)
		rest := flags.Args()
		switch {
		case errors.Is(err, flag.ErrHelp):
			return nil, nil, true
		case err != nil:
			// Parse goes no further than the flag that it can not read.
			name, _, _ := strings.Cut(strings.TrimLeft(args[len(args)-len(rest)-1], "-"), "=")
			known := flags.Lookup(name)
			switch {
			case known == nil:
				mistakes = append(mistakes, fmt.Errorf("there is no flag -%s", name))
			case isBool(known):
				mistakes = append(mistakes, fmt.Errorf("-%s takes no value", name))
			default:
				mistakes = append(mistakes, fmt.Errorf("-%s needs a value", name))
			}
		case len(rest) > 0:
			operands = append(operands, rest[0])
			rest = rest[1:]
		}
		args = rest
	}
	flags.Visit(func(f *flag.Flag) {
		if !isBool(f) && strings.HasPrefix(f.Value.String(), "-") {
			mistakes = append(mistakes, fmt.Errorf("-%s needs a value, which can not begin with a dash", f.Name))
		}
	})
	return operands, mistakes, false
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// keysCommand is one of the keys commands with its arguments.
type keysCommand struct {
	stdout, stderr io.Writer
	json           bool

	holder apikey.Holder
	test   bool
	name   string
	id     apikey.ID
}

// check returns every mistake in the values of the flags that were read, and in
// the operands. None of them holds the value: it may be a token.
func (k *keysCommand) check(command string, flags *flag.FlagSet, operands []string) (mistakes []error) {
	broken := func(h apikey.Holder, name string) {
		for _, rule := range apikey.Check(h, name) {
			mistakes = append(mistakes, fmt.Errorf("-%w", rule)) // the flags have the members' names
		}
	}
	switch command {
	case "create":
		k.holder.Mode = apikey.Live
		if k.test {
			k.holder.Mode = apikey.Test
		}
		broken(k.holder, k.name)
	case "list":
		flags.Visit(func(f *flag.Flag) {
			if f.Name == "merchant" {
				broken(apikey.Holder{Merchant: k.holder.Merchant, Role: apikey.API, Mode: apikey.Live}, "")
			}
		})
	case "revoke":
		var ok bool
		if len(operands) == 1 {
			k.id, ok = apikey.ParseID(operands[0])
		}
		if !ok {
			mistakes = append(mistakes, errors.New("one ID of a key is needed, key_ and 32 lower-case hex digits: see api keys list"))
		}
		return mistakes
	}
	if len(operands) > 0 {
		mistakes = append(mistakes, errors.New("nothing can stand beside the flags"))
	}
	return mistakes
}

func (k *keysCommand) create(ctx context.Context, store apikey.Store) error {
	token, key, err := apikey.Issue(ctx, store, k.holder, k.name)
	if err != nil {
		return err
	}
	if k.json {
		err = k.writeJSON(struct {
			keyJSON
			Token string `json:"token"`
		}{toJSON(key), token.Reveal()})
	} else {
		err = k.writeTable(
			[]string{"id", key.ID.String()}, []string{"merchant", key.Merchant}, []string{"role", string(key.Role)},
			[]string{"mode", string(key.Mode)}, []string{"name", orDash(key.Name)}, []string{"token", token.Reveal()})
	}
	if err != nil {
		return fmt.Errorf("the key %s was made, and its token could not be shown and is lost (revoke it, and make another): %w", key.ID, err)
	}
	fmt.Fprintln(k.stderr, "The token is shown this once: keep it now.")
	return nil
}

func (k *keysCommand) list(ctx context.Context, store apikey.Store) error {
	keys, err := store.List(ctx, k.holder.Merchant)
	if err != nil {
		return err
	}
	if k.json {
		list := struct {
			Data []keyJSON `json:"data"`
		}{Data: []keyJSON{}}
		for _, key := range keys {
			list.Data = append(list.Data, toJSON(key))
		}
		return k.writeJSON(list)
	}
	if len(keys) == 0 {
		fmt.Fprintln(k.stderr, "There are no keys.")
		return nil
	}
	rows := [][]string{{"ID", "MERCHANT", "ROLE", "MODE", "CREATED", "LAST USED", "REVOKED", "NAME"}}
	for _, key := range keys {
		rows = append(rows, []string{
			key.ID.String(), key.Merchant, string(key.Role), string(key.Mode),
			key.CreatedAt.Format(forPeople), orDash(day(key.LastUsed)), orDash(at(key.RevokedAt, forPeople)), orDash(key.Name),
		})
	}
	return k.writeTable(rows...)
}

func (k *keysCommand) revoke(ctx context.Context, store apikey.Store) error {
	key, again, err := store.Revoke(ctx, k.id)
	switch {
	case errors.Is(err, apikey.ErrNotFound):
		return fmt.Errorf("there is no key %s in this database: see api keys list", k.id)
	case err != nil:
		return err
	case k.json:
		return k.writeJSON(struct {
			keyJSON
			AlreadyRevoked bool `json:"already_revoked"`
		}{toJSON(key), again})
	case again:
		_, err = fmt.Fprintf(k.stdout, "%s of %s was revoked already, at %s\n", key.ID, key.Merchant, key.RevokedAt.Format(forPeople))
	default:
		_, err = fmt.Fprintf(k.stdout, "%s of %s is revoked: every replica refuses it within 5 seconds\n", key.ID, key.Merchant)
	}
	return err
}

// keyJSON is a key as -json tells it. keysUsageOf documents the members.
type keyJSON struct {
	ID         string  `json:"id"`
	Merchant   string  `json:"merchant"`
	Role       string  `json:"role"`
	Mode       string  `json:"mode"`
	Name       string  `json:"name"`
	CreatedAt  string  `json:"created_at"`
	LastUsedOn *string `json:"last_used_on"`
	RevokedAt  *string `json:"revoked_at"`
}

// The forms of times: for people, and the API's own for programs.
const (
	forPeople   = "2006-01-02 15:04:05Z"
	forPrograms = "2006-01-02T15:04:05.000000Z"
)

func toJSON(k apikey.Key) keyJSON {
	orNull := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return keyJSON{
		ID: k.ID.String(), Merchant: k.Merchant, Role: string(k.Role), Mode: string(k.Mode), Name: k.Name,
		CreatedAt:  k.CreatedAt.Format(forPrograms),
		LastUsedOn: orNull(day(k.LastUsed)),
		RevokedAt:  orNull(at(k.RevokedAt, forPrograms)),
	}
}

// day returns a date, or nothing where there is none; at does so for a time.
func day(t time.Time) string { return at(t, time.DateOnly) }

func at(t time.Time, layout string) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(layout)
}

// orDash returns what a cell of a table shows, which is never nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// writeJSON writes v and a line's end in one piece.
func (k *keysCommand) writeJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = k.stdout.Write(append(b, '\n'))
	return err
}

// writeTable writes rows of cells in columns, in one piece.
func (k *keysCommand) writeTable(rows ...[]string) error {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := k.stdout.Write(b.Bytes())
	return err
}
