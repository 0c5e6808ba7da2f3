package intentd

import _ "embed"

// ErrorDocs is docs/errors.md, which has a section for each error code of the
// API. The service serves it as a page at /docs/errors.
//
//go:embed docs/errors.md
var ErrorDocs []byte
