package localpg

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// minMajor is the oldest version that the service's schema is meant for.
const minMajor = 15

// installed are the places of distributions: Debian's, Red Hat's, Homebrew's on
// both processors, and Postgres.app's.
var installed = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// programs are one installation's.
type programs struct {
	initdb, postgres string
	major            int
}

// findPrograms returns the programs that can serve a cluster of the given
// PG_VERSION, or, if that is empty, the first in PATH or the newest elsewhere.
func findPrograms(getenv func(string) string, who *account, clusterVersion string) (programs, error) {
	var found []programs
	add := func(dirs []string) {
		for _, dir := range dirs {
			if p, ok := inspect(dir, who); ok {
				found = append(found, p)
			}
		}
	}
	if dir := getenv("PG_BINDIR"); dir != "" {
		add([]string{dir})
	} else {
		add(filepath.SplitList(getenv("PATH")))
		inPath := len(found)
		for _, pattern := range installed {
			// The patterns are constant and valid.
			dirs, _ := filepath.Glob(pattern)
			add(dirs)
		}
		slices.SortStableFunc(found[inPath:], func(a, b programs) int { return cmp.Compare(b.major, a.major) })
	}

	var versions []string
	for _, p := range found {
		if p.major >= minMajor && (clusterVersion == "" || clusterVersion == strconv.Itoa(p.major)) {
			return p, nil
		}
		versions = append(versions, fmt.Sprintf("%d in %s", p.major, filepath.Dir(p.postgres)))
	}
	switch {
	case len(versions) == 0:
		return programs{}, ErrNoPrograms
	case clusterVersion == "":
		return programs{}, fmt.Errorf("%w: only version %s", ErrNoPrograms, strings.Join(versions, ", "))
	default:
		return programs{}, fmt.Errorf("the data directory was made by PostgreSQL %s, and the programs found are version %s",
			clusterVersion, strings.Join(versions, ", "))
	}
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect asks the programs in dir for their version as the server's user,
// which has to be able to run them.
func inspect(dir string, who *account) (programs, bool) {
	if !filepath.IsAbs(dir) {
		return programs{}, false
	}
	p := programs{initdb: filepath.Join(dir, "initdb"), postgres: filepath.Join(dir, "postgres")}
	for _, program := range []string{p.initdb, p.postgres} {
		out, err := who.command(program, "--version").Output()
		version := versionPattern.FindSubmatch(out)
		if err != nil || version == nil {
			return programs{}, false
		}
		// The pattern admits digits only; an absurd number of them makes it 0.
		p.major, _ = strconv.Atoi(string(version[1]))
	}
	return p, true
}
