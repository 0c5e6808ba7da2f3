// Package secret holds texts that must not be printed: tokens, passwords and the
// URLs that have one in them. A Text shows a mark in place of itself wherever Go
// prints, marshals or logs values; who needs the text calls Reveal, and is found
// by that name.
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// Mark is what is shown in place of a secret, of an empty one too: that one is
// set or not is for who asks by Empty.
const Mark = "[redacted]"

// Text is a secret. The zero Text is empty. It is shown as Mark by package fmt
// with every verb, by log/slog, by encoding/json and whatever else marshals text,
// and in the differences of go-cmp.
//
// Who asks no method of it, as package fmt where it is in an unexported member,
// shows what it is made of: Mark, and the address of a function. The text is in
// that function, where no reflection reaches it.
type Text struct {
	mark   string // for those who look here
	reveal func() string
}

// New returns text as a secret.
func New(text string) Text {
	return Text{Mark, func() string { return text }}
}

// Reveal returns the secret itself, for who has to send it, or to show it on
// purpose. What comes of it must not get into an error or a log.
func (t Text) Reveal() string {
	if t.reveal == nil {
		return ""
	}
	return t.reveal()
}

// Empty tells whether there is nothing to hide.
func (t Text) Empty() bool { return t.Reveal() == "" }

// Equal tells whether both are the same text, in a time that depends on how long
// they are, and not on where they differ. It is what go-cmp compares by.
func (t Text) Equal(other Text) bool {
	a, b := sha256.Sum256([]byte(t.Reveal())), sha256.Sum256([]byte(other.Reveal()))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String implements fmt.Stringer, for who asks for it by name: it returns Mark.
func (Text) String() string { return Mark }

// GoString implements fmt.GoStringer: it returns Mark.
func (Text) GoString() string { return Mark }

// Format implements fmt.Formatter, so that no verb (%x, say) shows more than Mark.
func (Text) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Mark) }

// LogValue implements slog.LogValuer: it returns Mark.
func (Text) LogValue() slog.Value { return slog.StringValue(Mark) }

// MarshalText implements encoding.TextMarshaler, which encoding/json goes by: it
// returns Mark. What is read back from that is no secret any more.
func (Text) MarshalText() ([]byte, error) { return []byte(Mark), nil }

// UnmarshalText implements encoding.TextUnmarshaler, so that a secret is one from
// the moment at which it is read. It takes every text.
func (t *Text) UnmarshalText(text []byte) error {
	*t = New(string(text))
	return nil
}
