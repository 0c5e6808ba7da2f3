package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	mit = "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated...\n" +
		"The above copyright notice and this permission notice shall be included...\n" +
		"THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, ...\n"
	bsd2 = "Redistributions of source code must retain the above copyright\n   notice, ...\n" +
		"Redistributions in binary form must reproduce the above copyright notice, ...\n" +
		"THIS SOFTWARE IS PROVIDED BY ... \"AS IS\" AND ANY EXPRESS OR IMPLIED WARRANTIES, ...\n"
	endorse = "Neither the name of ... may be used to endorse or promote products\nderived from this software ...\n"
	isc     = "Permission to use, copy, modify, and/or distribute this software for any\n// purpose with or without fee is hereby granted, provided that ...\n"
	mpl     = "Mozilla Public License, version 2.0\n1.12. \"Secondary License\" means either the GNU General Public License, Version 2.0, the\n" +
		"GNU Lesser General Public License, Version 2.1, the GNU Affero General Public License, Version 3.0, or any later versions of those licenses.\n" +
		"Covered Software is provided under this License on an \"as is\" basis, ...\n"
	apache = "Licensed under the Apache License, Version 2.0 (the \"License\");\nyou may not use this file except in compliance with the License.\n"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text string
		want []string // nil: refused
	}{
		"MIT":                 {mit, []string{"MIT"}},
		"BSDOfTwoClauses":     {bsd2, []string{"BSD-2-Clause"}},
		"BSDOfThree":          {bsd2 + endorse, []string{"BSD-3-Clause"}},
		"ISC":                 {isc, []string{"ISC"}},
		"MPL":                 {mpl, []string{"MPL-2.0"}},
		"Apache":              {apache, []string{"Apache-2.0"}},
		"Several":             {apache + mit, []string{"Apache-2.0", "MIT"}},
		"Nothing":             {"", nil},
		"OneSentenceOfIt":     {strings.SplitAfter(mit, "\n")[0], nil},
		"GPL":                 {"GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\n", nil},
		"OneOfTwoNotAllowed":  {mit + "or the GNU Lesser General Public License", nil},
		"AddedCondition":      {mit + "The Software shall be used for Good, not Evil.", nil},
		"CommonsClause":       {apache + `"Commons Clause" License Condition v1.0`, nil},
		"BSDOfFourClauses":    {bsd2 + endorse + "All advertising materials mentioning features ...", nil},
		"OlderMozilla":        {"Mozilla Public License Version 1.1\n", nil},
		"MPLWithAGPLBesideIt": {mpl + "GNU Affero General Public License", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := classify(tt.text)
			if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.want != nil) {
				t.Errorf("classify: error %v, (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestModule_Licences(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, files map[string]string) *module {
		t.Helper()
		root := t.TempDir()
		for name, text := range files {
			path := filepath.Join(root, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return &module{path: "example.org/m", root: root, packages: []string{filepath.Join(root, "a", "b"), root}}
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string // nil: refused
	}{
		"OfTheRoot":         {map[string]string{"LICENSE": mit, "a/b/b.go": ""}, []string{"MIT"}},
		"OnTheWayUp":        {map[string]string{"COPYING": mit, "a/LICENCE.txt": isc, "a/b/License-BSD": bsd2}, []string{"BSD-2-Clause", "ISC", "MIT"}},
		"NotOnTheWayUp":     {map[string]string{"LICENSE": mit, "a/b/b.go": "", "c/LICENSE": "GNU GPL"}, []string{"MIT"}},
		"None":              {map[string]string{"README": mit, "licence.go": mit, "a/b/b.go": ""}, nil},
		"OneThatIsNoneOfIt": {map[string]string{"LICENSE": mit, "a/b/LICENSE": "GNU GPL"}, nil},
		"OneUnknown":        {map[string]string{"LICENSE": mit, "LICENSE-2": "Ask us.", "a/b/b.go": ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := write(t, tt.files).licences()
			if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.want != nil) {
				t.Errorf("licences: error %v, (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestRun asks about this very module, whose tests import go-cmp and nothing else.
func TestRun(t *testing.T) {
	t.Parallel()
	for test, want := range map[bool]string{false: "", true: "github.com/google/go-cmp v"} {
		var out strings.Builder
		if err := run(&out, "../..", test, []string{"./tests/licences"}); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != len(want)/len("github.com/google/go-cmp v") {
			t.Errorf("with tests %t:\n%s", test, got)
		}
	}
}
