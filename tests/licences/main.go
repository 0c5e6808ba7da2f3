// Command licences tells under which licences the modules are that packages of
// this repository need, and fails where one is not among those allowed. It reads
// the licence files that the module cache has, and asks nobody.
//
//	licences [-C directory] [-test] package...
//
// Every licence file counts from a package's directory up to the root of its
// module, since code that a module took over from others has its own below. Go's
// standard library (BSD-3-Clause) comes with the compiler and is not listed.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	dir := flag.String("C", ".", "the directory of the module that the packages are of")
	test := flag.Bool("test", false, "with what their tests need")
	flag.Parse()
	if err := run(os.Stdout, *dir, *test, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// run prints the table, and returns an error that names each module that may not
// be used.
func run(w io.Writer, dir string, test bool, patterns []string) error {
	modules, err := list(dir, test, patterns)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var refused []error
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		licences, err := modules[name].licences()
		if err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", name, err))
			continue
		}
		fmt.Fprintf(table, "%s\t%s\n", name, strings.Join(licences, ", "))
	}
	return errors.Join(append(refused, table.Flush())...)
}

// module is a module of somebody else's, and the directories of its packages that
// are needed.
type module struct {
	path, root string
	packages   []string
}

// list returns the modules by path and version.
func list(dir string, test bool, patterns []string) (map[string]*module, error) {
	args := []string{"list", "-C", dir, "-deps", "-json=Dir,Module"}
	if test {
		args = append(args, "-test")
	}
	cmd := exec.Command("go", append(append(args, "--"), patterns...)...) //nolint:gosec,noctx // a command line's own words; it ends with this process
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	modules := make(map[string]*module)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			Dir    string
			Module *struct {
				Path, Version, Dir string
				Main               bool
				Replace            *struct{ Path, Version, Dir string }
			}
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return modules, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		m := p.Module
		if m == nil || m.Main {
			continue // Go's own, ours
		}
		if m.Replace != nil {
			if m.Replace.Version == "" {
				continue // a directory of this repository
			}
			m.Path, m.Version, m.Dir = m.Replace.Path, m.Replace.Version, m.Replace.Dir
		}
		name := m.Path + " " + m.Version
		if modules[name] == nil {
			modules[name] = &module{path: m.Path, root: m.Dir}
		}
		modules[name].packages = append(modules[name].packages, p.Dir)
	}
}

var licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying)([-._].*)?$`)

// passedOver are licence files of what is in no program.
var passedOver = map[string]string{
	"github.com/opencontainers/go-digest/LICENSE.docs": "its documentation's",
}

// licences returns the SPDX identifiers of what the module's packages are under.
// It is an error to have none, one that is not known, or one that is not allowed.
func (m *module) licences() ([]string, error) {
	found := make(map[string]bool)
	seen := make(map[string]bool)
	for _, dir := range m.packages {
		for ; !seen[dir]; dir = filepath.Dir(dir) {
			seen[dir] = true
			if err := m.read(dir, found); err != nil {
				return nil, err
			}
			if dir == m.root {
				break
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no licence file")
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// read adds the licences of one directory's files to found.
func (m *module) read(dir string, found map[string]bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() || strings.HasSuffix(e.Name(), ".go") || !licenceFile.MatchString(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		name := m.path + filepath.ToSlash(strings.TrimPrefix(path, m.root))
		if _, ok := passedOver[name]; ok {
			continue
		}
		text, err := os.ReadFile(path) //nolint:gosec // a name that the directory has
		if err != nil {
			return err
		}
		ids, err := classify(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, id := range ids {
			found[id] = true
		}
	}
	return nil
}

// allowed has for each licence that may be used what its text says and no other's
// does, as plain has it. All of a licence's phrases have to be there.
var allowed = map[string][][]string{
	"Apache-2.0": {
		{"apache license version 2 0 january 2004", "grant of copyright license", "grant of patent license", "redistribution you may reproduce"},
		{"licensed under the apache license version 2 0 the license you may not use this file except in compliance with the license"},
	},
	"BSD-2-Clause": {{
		"redistributions of source code must retain the above copyright notice",
		"redistributions in binary form must reproduce the above copyright notice",
		"as is and any express or implied warranties",
	}},
	"ISC": {{"permission to use copy modify and or distribute this software for any purpose with or without fee is hereby granted provided that"}},
	"MIT": {{
		"permission is hereby granted free of charge to any person obtaining a copy of this software",
		"the above copyright notice and this permission notice",
		"the software is provided as is without warranty of any kind",
	}},
	"MPL-2.0": {{"mozilla public license version 2 0", "covered software is provided under this license on an as is basis"}},
}

// ours are passages of allowed licences that speak of others.
var ours = []string{
	"means either the gnu general public license version 2 0 the gnu lesser general public license version 2 1 " +
		"the gnu affero general public license version 3 0 or any later versions of those licenses",
}

// forbidden finds licences that are not allowed, and conditions that have been
// added to one that is.
var forbidden = regexp.MustCompile(`\b(gnu|a?gpl|lgpl|affero|server side public|sspl|business source|busl|commons clause|` +
	`elastic license|confluent community|polyform|creative commons|non ?commercial|cddl|common development and distribution|` +
	`eclipse public|european union public|mozilla public license (version|v) 1|microsoft public|artistic license|` +
	`used for good not evil|all advertising materials)\b`)

// classify returns the licences that a text consists of.
func classify(text string) (ids []string, err error) {
	text = plain(text)
	for id, ways := range allowed {
		if slices.ContainsFunc(ways, func(phrases []string) bool {
			return !slices.ContainsFunc(phrases, func(phrase string) bool { return !strings.Contains(text, phrase) })
		}) {
			ids = append(ids, id)
		}
	}
	if i := slices.Index(ids, "BSD-2-Clause"); i >= 0 && strings.Contains(text, "may be used to endorse or promote products derived from") {
		ids[i] = "BSD-3-Clause"
	}
	for _, passage := range ours {
		text = strings.ReplaceAll(text, passage, "")
	}
	switch other := forbidden.FindString(text); {
	case other != "":
		return nil, fmt.Errorf("not allowed: it speaks of %q", other)
	case len(ids) == 0:
		return nil, fmt.Errorf("none of %s that is known here", strings.Join(slices.Sorted(maps.Keys(allowed)), ", "))
	}
	slices.Sort(ids)
	return ids, nil
}

var noWord = regexp.MustCompile(`[^a-z0-9]+`)

// plain is a text's words, in lower case and with one space between them.
func plain(text string) string {
	return strings.TrimSpace(noWord.ReplaceAllString(strings.ToLower(text), " "))
}
