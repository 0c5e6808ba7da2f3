package migrations

import (
	"fmt"
	"io"
	"strings"

	"github.com/golang-migrate/migrate/v4/database"
)

// driver is golang-migrate's driver for pgx, except that a migration and its
// version number are one transaction.
//
// golang-migrate marks the version dirty, runs the migration, and marks it
// clean, in three transactions. Here the first only notes the version, and the
// second carries the number along: the wrapped driver sends what has no
// arguments as one simple query message, and PostgreSQL runs the statements of
// one message as one transaction
// (https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-MULTI-STATEMENT).
type driver struct {
	database.Driver
	table string // quoted
	next  int
}

// SetVersion notes the version of the migration that Run is about to run, or
// writes the one that it has run, which changes nothing then.
func (d *driver) SetVersion(version int, dirty bool) error {
	if dirty {
		d.next = version
		return nil
	}
	return d.Driver.SetVersion(version, false)
}

// Run runs a migration and records the noted version, both or neither.
func (d *driver) Run(migration io.Reader) error {
	body, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	var sql strings.Builder
	// On the first line of the body, so that line numbers in errors stay true.
	fmt.Fprintf(&sql, "set local lock_timeout = %d; ", ddlLockTimeout.Milliseconds())
	sql.Write(body)
	// The line break ends a comment, the semicolon a statement.
	fmt.Fprintf(&sql, "\n;\ndelete from %s;\n", d.table)
	if d.next != database.NilVersion {
		fmt.Fprintf(&sql, "insert into %s (version, dirty) values (%d, false);\n", d.table, d.next)
	}
	return d.Driver.Run(strings.NewReader(sql.String()))
}
