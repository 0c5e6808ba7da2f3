package api_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/google/go-cmp/cmp"

	"intentd"
)

// The documentation's files are taken as they are when answers are compared with
// openapi.yaml.
func init() {
	for _, contentType := range []string{"text/html", "text/css", "text/javascript", "image/png"} {
		openapi3filter.RegisterBodyDecoder(contentType, openapi3filter.FileBodyDecoder)
	}
}

// codes are the error codes of openapi.yaml.
func codes(t testing.TB) (codes []string) {
	t.Helper()
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range doc.Components.Schemas["Error"].Value.Properties["error"].Value.Enum {
		codes = append(codes, code.(string))
	}
	if sort.Strings(codes); len(codes) == 0 {
		t.Fatal("openapi.yaml has no error codes")
	}
	return codes
}

// sections returns the sections of docs/errors.md that are a code's.
func sections(t testing.TB) map[string]string {
	t.Helper()
	code := regexp.MustCompile(`^[a-z_]+$`)
	sections := make(map[string]string)
	for i, section := range strings.Split(string(intentd.ErrorDocs), "\n## ") {
		title, text, _ := strings.Cut(section, "\n")
		if i == 0 || !code.MatchString(title) {
			continue
		}
		if sections[title] != "" {
			t.Errorf("two sections are of %s", title)
		}
		sections[title] = text
	}
	return sections
}

// TestErrorDocs holds docs/errors.md to openapi.yaml.
func TestErrorDocs(t *testing.T) {
	t.Parallel()
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	sections := sections(t)

	// What the document shows of each code: its statuses and example bodies.
	statuses, bodies := make(map[string][]string), make(map[string][]string)
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			for status, response := range op.Responses.Map() {
				for _, media := range response.Value.Content {
					for _, example := range media.Examples {
						m, _ := example.Value.Value.(map[string]any)
						if code, ok := m["error"].(string); ok {
							statuses[code] = append(statuses[code], status)
							bodies[code] = append(bodies[code], encoded(t, m))
						}
					}
				}
			}
		}
	}

	t.Run("HasEveryCodeAndNoOther", func(t *testing.T) {
		t.Parallel()
		var got []string
		for code := range sections {
			got = append(got, code)
		}
		sort.Strings(got)
		if diff := cmp.Diff(codes(t), got); diff != "" {
			t.Errorf("sections (-openapi.yaml +docs/errors.md):\n%s", diff)
		}
	})

	t.Run("TableHasEveryCodeAndItsStatus", func(t *testing.T) {
		t.Parallel()
		var got []string
		for _, row := range regexp.MustCompile(`(?m)^\| ([0-9]+) \| \[(.*)\]\(#(.*)\) \| [^|]+ \| [^|]+ \|$`).FindAllStringSubmatch(string(intentd.ErrorDocs), -1) {
			status, code, anchor := row[1], row[2], row[3]
			got = append(got, code)
			if anchor != code || !strings.Contains(sections[code], "\n* **Status:** "+status) {
				t.Errorf("the row of %s: %s", code, row[0])
			}
		}
		sort.Strings(got)
		if diff := cmp.Diff(codes(t), got); diff != "" {
			t.Errorf("table (-openapi.yaml +docs/errors.md):\n%s", diff)
		}
	})

	form := regexp.MustCompile(`(?s)^\n\* \*\*Status:\*\* ([0-9]{3})(?:, [^\n]+)?\n\* \*\*When:\*\* .+\n\* \*\*What to do:\*\* .+\n\* \*\*Same key\?\*\* .+\n\* \*\*Recorded:\*\* .+$`)
	fence := regexp.MustCompile("(?s)```json\n(.*?)\n```")
	for code, text := range sections {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			parts := form.FindStringSubmatch(text)
			if parts == nil {
				t.Fatalf("the section has not its five parts:\n%s", text)
			}
			for _, status := range statuses[code] {
				if status != parts[1] {
					t.Errorf("status %s, in openapi.yaml %s", parts[1], status)
				}
			}
			for _, example := range fence.FindAllStringSubmatch(text, -1) {
				var m map[string]any
				if err := json.Unmarshal([]byte(example[1]), &m); err != nil {
					t.Fatalf("%v: %s", err, example[1])
				}
				if !slices.Contains(bodies[code], encoded(t, m)) {
					t.Errorf("openapi.yaml has not the example %s", example[1])
				}
			}
		})
	}
}

// encoded is v with its members in order, to compare by.
func encoded(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// docFiles are the paths below /docs, and their types.
var docFiles = map[string]string{
	"/docs":                      "text/html; charset=utf-8",
	"/docs/errors":               "text/html; charset=utf-8",
	"/docs/start.js":             "text/javascript; charset=utf-8",
	"/docs/swagger-ui-bundle.js": "text/javascript; charset=utf-8",
	"/docs/swagger-ui.css":       "text/css; charset=utf-8",
	"/docs/favicon-32x32.png":    "image/png",
}

func TestDocs(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{})
	get := func(t *testing.T, path string, header ...string) *answer {
		t.Helper()
		// Without this line Go's client unzips what it gets, and does not say so.
		return s.do(t, call{method: http.MethodGet, path: path, header: append([]string{"-Authorization", "-Accept-Encoding"}, header...)})
	}

	t.Run("DocumentHasEveryFile", func(t *testing.T) {
		t.Parallel()
		doc, err := document()
		if err != nil {
			t.Fatal(err)
		}
		paths := []string{"/docs", "/docs/errors"}
		for _, name := range doc.Paths.Value("/docs/{asset}").Get.Parameters[0].Value.Schema.Value.Enum {
			paths = append(paths, "/docs/"+name.(string))
		}
		sort.Strings(paths)
		var want []string
		for path := range docFiles {
			want = append(want, path)
		}
		sort.Strings(want)
		if diff := cmp.Diff(want, paths); diff != "" {
			t.Errorf("files (-want +documented):\n%s", diff)
		}
	})

	for path, contentType := range docFiles {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			plain := get(t, path, "Accept-Encoding: identity")
			plain.want(t, http.StatusOK, "")
			for name, want := range map[string]string{
				"Content-Type": contentType, "Content-Encoding": "", "Cache-Control": "no-cache",
				"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Content-Length": strconv.Itoa(len(plain.body)),
			} {
				if got := plain.header.Get(name); got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
			policy := plain.header.Get("Content-Security-Policy")
			if !strings.HasPrefix(policy, "default-src 'none'; ") || regexp.MustCompile(`\*|https?:|//|unsafe-eval|script-src[^;]*unsafe`).MatchString(policy) {
				t.Errorf("Content-Security-Policy = %q", policy)
			}

			if strings.HasPrefix(contentType, "text/html") {
				// These do not fall back on default-src.
				for _, directive := range []string{"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
					if !slices.Contains(strings.Split(policy, "; "), directive) {
						t.Errorf("Content-Security-Policy = %q, without %s", policy, directive)
					}
				}
				// What the policy would have the browser drop.
				inline := regexp.MustCompile(`(?s)<script>| style=| on\w+=|<style>(.*?)</style>`)
				for _, m := range inline.FindAllStringSubmatch(plain.body, -1) {
					sum := sha256.Sum256([]byte(m[1]))
					if m[1] == "" || !strings.Contains(policy, "style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'") {
						t.Errorf("Content-Security-Policy = %q does not allow %.20s", policy, m[0])
					}
				}
			}

			// A page loads what is here, and nothing from elsewhere.
			for _, m := range regexp.MustCompile(`<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="([^"]*)"`).FindAllStringSubmatch(plain.body, -1) {
				if strings.HasPrefix(contentType, "text/html") && docFiles[m[1]] == "" {
					t.Errorf("loads %q", m[1])
				}
			}

			head := s.do(t, call{method: http.MethodHead, path: path, header: []string{"Accept-Encoding: identity"}})
			head.want(t, http.StatusOK, "")
			for _, name := range []string{"Content-Type", "Content-Length", "ETag", "Content-Security-Policy"} {
				if head.header.Get(name) != plain.header.Get(name) {
					t.Errorf("HEAD: %s = %q, of GET %q", name, head.header.Get(name), plain.header.Get(name))
				}
			}

			tags := make(map[string]bool)
			for _, coding := range []string{"identity", "gzip"} {
				tag := get(t, path, "Accept-Encoding: "+coding).header.Get("ETag")
				tags[tag] = true
				for _, condition := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
					a := get(t, path, "Accept-Encoding: "+coding, "If-None-Match: "+condition)
					if a.status != http.StatusNotModified || a.body != "" || a.header.Get("ETag") != tag {
						t.Errorf("If-None-Match: %s = %d, ETag %s", condition, a.status, a.header.Get("ETag"))
					}
				}
			}
			get(t, path, `If-None-Match: "other"`).want(t, http.StatusOK, "")
			if zipped := plain.header.Get("Vary") == "Accept-Encoding"; zipped != (len(tags) == 2) {
				t.Errorf("Vary %q and the tags %v", plain.header.Get("Vary"), tags)
			}
		})
	}

	t.Run("Gzip", func(t *testing.T) {
		t.Parallel()
		const path = "/docs/swagger-ui-bundle.js"
		want := get(t, path, "Accept-Encoding: identity").body
		for accepted, zipped := range map[string]bool{
			"gzip": true, "deflate, gzip;q=0.5": true, "GZIP": true, "*": true, "br, *;q=0.1": true,
			"gzip;q=0": false, "gzip; q=0.000": false, "*, gzip;q=0": false, "gzip;q=0, *": false, "*;q=0": false, "br": false, "": false,
		} {
			a := get(t, path, "Accept-Encoding: "+accepted)
			body := a.body
			if got := a.header.Get("Content-Encoding") == "gzip"; got != zipped {
				t.Errorf("Accept-Encoding: %s = Content-Encoding %q", accepted, a.header.Get("Content-Encoding"))
			}
			if zipped {
				zr, err := gzip.NewReader(strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(zr)
				if err != nil {
					t.Fatal(err)
				}
				body = string(b)
			}
			if body != want {
				t.Errorf("Accept-Encoding: %s = %d bytes, want %d", accepted, len(body), len(want))
			}
		}
	})

	t.Run("AnotherPathIsA404", func(t *testing.T) {
		t.Parallel()
		for _, path := range []string{"/docs/", "/docs/errors/", "/docs/x", "/docs/index.html", "/docs/start.js.gz", "/docs/swagger-uixcss", "/docs/a/start.js",
			"/docs/xstart.js", "/docs/start.jsx", "/docs/swagger-ui-bundle.js.gz", "/docs/oauth2-redirect.html", "/docs/..%2fstart.js"} {
			get(t, path).wantProblem(t, http.StatusNotFound, "not_found", "there is nothing at this path")
		}
	})

	// Where an error's Link header leads.
	t.Run("EveryCodeHasItsAnchor", func(t *testing.T) {
		t.Parallel()
		body := get(t, "/docs/errors").body
		for _, code := range codes(t) {
			if n := strings.Count(body, `<h2 id="`+code+`">`+code+`</h2>`); n != 1 {
				t.Errorf("%d headings of %s", n, code)
			}
			if n := strings.Count(body, `<td><a href="#`+code+`">`+code+`</a></td>`); n != 1 {
				t.Errorf("%d cells of the table link to %s", n, code)
			}
		}
		for _, m := range regexp.MustCompile(`href="#([^"]*)"`).FindAllStringSubmatch(body, -1) {
			if !strings.Contains(body, ` id="`+m[1]+`"`) {
				t.Errorf("a link leads to #%s, which is not there", m[1])
			}
		}
		ids := regexp.MustCompile(` id="([^"]*)"`).FindAllString(body, -1)
		sort.Strings(ids)
		if twice := len(ids) - len(slices.Compact(ids)); twice != 0 {
			t.Errorf("%d ids are there twice", twice)
		}
	})
}
