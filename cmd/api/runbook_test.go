package main

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOperations_LogMembers: docs/operations.md describes every member that a line
// of the log can have beside those of a request's, and none that no line has.
func TestOperations_LogMembers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\nThe other lines, and theirs beside `time`, `level` and `msg`:\n\n")
	if !ok {
		t.Fatal("docs/operations.md has no table of the other lines' members")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	described := make(map[string]bool)
	for row := range strings.Lines(table) {
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			described[name[1]] = true
		}
	}
	logged := make(map[string]bool)
	for _, root := range []string{".", "../../internal", "../../migrations"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(gotoken.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					for _, name := range membersOf(call) {
						logged[name] = true
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(described)), slices.Sorted(maps.Keys(logged))); diff != "" {
		t.Errorf("members of log lines (-docs/operations.md +the program):\n%s", diff)
	}
}

// membersOf returns the names of the members that a call of a logger's gives to its
// line; none where it is no such call.
func membersOf(call *ast.CallExpr) (members []string) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !regexp.MustCompile(`^(Debug|Info|Warn|Error)(Context)?$`).MatchString(method.Sel.Name) {
		return nil
	}
	logger := ""
	switch of := method.X.(type) {
	case *ast.Ident:
		logger = of.Name
	case *ast.SelectorExpr:
		logger = of.Sel.Name
	}
	if !strings.EqualFold(logger, "log") {
		return nil
	}
	first := 1
	if strings.HasSuffix(method.Sel.Name, "Context") {
		first = 2
	}
	for i := first; i < len(call.Args); i += 2 {
		if name, ok := call.Args[i].(*ast.BasicLit); ok {
			text, _ := strconv.Unquote(name.Value) // the compiler has read it
			members = append(members, text)
		}
	}
	return members
}
