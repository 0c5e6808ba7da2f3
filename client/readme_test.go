package client_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadme holds README.md's Go to the example that is compiled and run.
func TestReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n```go\n")
	shown, rest, _ := strings.Cut(rest, "\n```\n")
	if strings.Contains(rest, "\n```go\n") {
		t.Error("README.md has more Go than this test looks at")
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, "example_test.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if example, ok := d.(*ast.FuncDecl); ok && example.Name.Name == "Example" {
			body := string(source[files.Position(example.Body.Lbrace).Offset+1 : files.Position(example.Body.Rbrace).Offset])
			body, _, _ = strings.Cut(body, "\n\t// Output:")
			want := strings.TrimPrefix(strings.ReplaceAll(body, "\n\t", "\n"), "\n")
			if shown != want {
				t.Errorf("README.md shows\n%s\n\nand Example is\n%s", shown, want)
			}
			return
		}
	}
	t.Fatal("there is no Example")
}
