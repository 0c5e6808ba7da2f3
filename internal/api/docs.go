package api

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
	"github.com/swaggest/swgui/v5/static"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"

	"intentd"
)

//go:embed pages
var pages embed.FS

// documentation is what is served below /docs: pages for people, which need no
// credential and nothing from anywhere else.
type documentation struct {
	index  *file            // Swagger UI over openapi.yaml
	errors *file            // docs/errors.md
	assets map[string]*file // what the two load, by name
}

// loadDocs makes the documentation, once. It panics if a file that the program
// is built with is not what it should be.
var loadDocs = sync.OnceValue(func() documentation {
	d := documentation{
		index:  newFile("index.html", embedded("index.html"), indexPolicy),
		errors: errorsPage(),
		assets: map[string]*file{"start.js": newFile("start.js", embedded("start.js"), assetPolicy)},
	}
	for _, name := range []string{"favicon-32x32.png", "swagger-ui-bundle.js.gz", "swagger-ui.css.gz"} {
		data, err := static.FS.ReadFile(name)
		if err != nil {
			panic(err)
		}
		d.assets[strings.TrimSuffix(name, ".gz")] = newFile(name, data, assetPolicy)
	}
	return d
})

// route is the pattern of the assets' paths. It takes the names that exist and
// no other, so that the router knows the rest for what it is, a 404.
func (d documentation) route() string {
	var names []string
	for name := range d.assets {
		names = append(names, regexp.QuoteMeta(name))
	}
	slices.Sort(names)
	return "/docs/{asset:(?:" + strings.Join(names, "|") + ")}"
}

// asset serves GET /docs/{asset}.
func (d documentation) asset(w http.ResponseWriter, r *http.Request) {
	d.assets[chi.URLParam(r, "asset")].ServeHTTP(w, r)
}

// What a page may do (Content Security Policy, level 3): nothing but what is
// named, and nothing from or to any other origin.
const (
	// Swagger UI has its icons in data URLs.
	indexPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	assetPolicy = "default-src 'none'; frame-ancestors 'none'"
)

// file is one file of the documentation, ready to be sent.
type file struct {
	contentType string
	policy      string
	data        []byte
	zipped      bool   // data is compressed with gzip
	tag         string // changes with data
}

// newFile makes a file of data; its name tells its type.
func newFile(name string, data []byte, policy string) *file {
	name, zipped := strings.CutSuffix(name, ".gz")
	types := map[string]string{ // not the system's, which differ
		".html": "text/html; charset=utf-8",
		".css":  "text/css; charset=utf-8",
		".js":   "text/javascript; charset=utf-8",
		".png":  "image/png",
	}
	sum := sha256.Sum256(data)
	return &file{
		contentType: types[path.Ext(name)], policy: policy, data: data, zipped: zipped, tag: hex.EncodeToString(sum[:8]),
	}
}

// ServeHTTP answers with the whole file, or with 304 to who has it. Names do not
// change with what is in them, so caches have to ask each time; otherwise a page
// could run with the scripts of another release.
func (f *file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", f.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	tag, zipped := f.tag, f.zipped && takesGzip(r)
	if f.zipped {
		h.Set("Vary", "Accept-Encoding")
	}
	if zipped {
		tag += "-gzip" // RFC 9110, section 8.8.3.3: another representation has another tag
	}
	tag = `"` + tag + `"`
	h.Set("ETag", tag)
	if noneMatch(r, tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Type", f.contentType)
	data := f.data
	switch {
	case zipped:
		h.Set("Content-Encoding", "gzip")
	case f.zipped:
		data = unzip(data)
	}
	h.Set("Content-Length", fmt.Sprint(len(data)))
	_, _ = w.Write(data) // an error means that the client is gone
}

// unzip is for the rare client that takes no gzip.
func unzip(data []byte) []byte {
	zr, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		panic(err)
	}
	plain, err := io.ReadAll(zr)
	if err != nil {
		panic(err)
	}
	return plain
}

var noWeight = regexp.MustCompile(`^\s*[qQ]=0(\.0*)?\s*$`)

// takesGzip reads Accept-Encoding (RFC 9110, section 12.5.3). Without one, or
// with a weight of 0, the file goes out plain, which everybody takes.
func takesGzip(r *http.Request) bool {
	takes := false
	for item := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		coding, weight, _ := strings.Cut(item, ";")
		refused := noWeight.MatchString(weight)
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip":
			return !refused
		case "*":
			takes = !refused
		}
	}
	return takes
}

// errorsPage renders docs/errors.md. Each code's heading has the code as its id,
// on this page as on GitHub's: the Link header of every error leads there.
func errorsPage() *file {
	var body bytes.Buffer
	md := goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
	if err := md.Convert(intentd.ErrorDocs, &body, parser.WithContext(parser.NewContext(parser.WithIDs(headingIDs{})))); err != nil {
		panic(err)
	}
	style := embedded("errors.css")
	// Not html/template, which makes the linker keep every exported method.
	page := strings.NewReplacer("{{style}}", string(style), "{{body}}", body.String()).Replace(string(embedded("errors.html")))
	sum := sha256.Sum256(style)
	return newFile("errors.html", []byte(page), "default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+
		"'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
}

// headingIDs names headings as GitHub does, which keeps the underscore that
// goldmark replaces. Headings of the same text would get the same id; a test
// holds docs/errors.md to having none.
type headingIDs struct{}

var notInID = regexp.MustCompile(`[^a-z0-9 _-]`)

// Generate implements parser.IDs.
func (headingIDs) Generate(value []byte, _ ast.NodeKind) []byte {
	id := notInID.ReplaceAllString(strings.ToLower(strings.TrimSpace(string(value))), "")
	return []byte(strings.ReplaceAll(id, " ", "-"))
}

// Put implements parser.IDs.
func (headingIDs) Put([]byte) {}

func embedded(name string) []byte {
	data, err := pages.ReadFile("pages/" + name)
	if err != nil {
		panic(err)
	}
	return data
}
