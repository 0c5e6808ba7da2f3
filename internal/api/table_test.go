package api

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"intentd/internal/intent"
)

// TestProblemOf_KnowsTheDomain: every error that the domain may return has its
// place in the table, so that none becomes a fault of ours by being forgotten.
func TestProblemOf_KnowsTheDomain(t *testing.T) {
	t.Parallel()
	codes := map[string]struct {
		err  error
		code string
	}{
		"ErrNotFound":          {intent.ErrNotFound, "not_found"},
		"ErrVersionConflict":   {&intent.VersionConflictError{Present: 2, Wanted: 1}, "version_conflict"},
		"ErrInvalidTransition": {intent.ErrInvalidTransition, "invalid_transition"},
		"ErrForbiddenActor":    {intent.ErrForbiddenActor, "forbidden_actor"},
		"ErrEvidenceRequired":  {intent.ErrEvidenceRequired, "evidence_required"},
		"ErrEvidenceMismatch":  {intent.ErrEvidenceMismatch, "evidence_mismatch"},
		"ErrExpired":           {intent.ErrExpired, "intent_expired"},
		"ErrUnavailable":       {intent.ErrUnavailable, "unavailable"},
	}
	var declared, known []string
	for name, c := range codes {
		known = append(known, name)
		if got := problemOf(fmt.Errorf("wrapped: %w", c.err)).code; got != c.code {
			t.Errorf("%s is answered %s, want %s", name, got, c.code)
		}
	}
	files, err := filepath.Glob("../intent/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(name.Name, "Err") {
						declared = append(declared, name.Name)
					}
				}
			}
		}
	}
	slices.Sort(declared)
	slices.Sort(known)
	if !slices.Equal(declared, known) {
		t.Errorf("the domain declares %v, this test knows %v", declared, known)
	}
	// What could not be written is no refusal, whatever it wraps.
	if got := problemOf(fmt.Errorf("%w: %w", intent.ErrUnavailable, intent.ErrVersionConflict)).status; got != 503 {
		t.Errorf("a conflict that the store could not solve = %d, want 503", got)
	}
}
