package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	t.Run("NameWithParentheses", func(t *testing.T) {
		t.Parallel()
		got, err := parseStat([]byte("4711 (a) b (c) S 42 1 1 0 -1 4194560 9 9 0 0 150 50 30 20 20 0 1 0 100 0 0\n"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(stat{parent: 42, own: 2, reaped: 0.5}, got, cmp.AllowUnexported(stat{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("Short", func(t *testing.T) {
		t.Parallel()
		if _, err := parseStat([]byte("1 (init) S 0 1")); err == nil {
			t.Error("a line that is too short was read")
		}
	})
}

func TestResidentBytes(t *testing.T) {
	t.Parallel()
	got, err := residentBytes(os.Getpid())
	if err != nil || got < 1<<20 {
		t.Errorf("residentBytes of this process = %d, %v", got, err)
	}
}
