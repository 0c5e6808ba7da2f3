package api

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// etagOf is the entity tag of a payment intent: its version. It is strong, since
// a version has one text only.
func etagOf(version int64) string {
	return `"` + strconv.FormatInt(version, 10) + `"`
}

var versionTag = regexp.MustCompile(`^"([1-9][0-9]{0,18})"$`)

// ifMatch returns the version that the request is made for: RFC 9110, section
// 13.1.1; 0 is any. Of what the RFC allows one tag and the asterisk are taken: a
// step is decided on one version.
func ifMatch(r *http.Request) (int64, error) {
	lines := r.Header.Values("If-Match")
	if len(lines) == 0 || len(lines) == 1 && lines[0] == "*" {
		return 0, nil
	}
	if m := versionTag.FindStringSubmatch(lines[0]); len(lines) == 1 && m != nil {
		if version, err := strconv.ParseInt(m[1], 10, 64); err == nil {
			return version, nil
		}
	}
	return 0, invalidRequest(`If-Match must be one version in double quotes, as an ETag has it, or *`)
}

// noneMatch says whether the client has what etag names already: RFC 9110,
// section 13.1.2. Tags are compared weakly; none of ours has a comma in it.
func noneMatch(r *http.Request, etag string) bool {
	for _, line := range r.Header.Values("If-None-Match") {
		for tag := range strings.SplitSeq(line, ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" || strings.TrimPrefix(tag, "W/") == etag {
				return true
			}
		}
	}
	return false
}
