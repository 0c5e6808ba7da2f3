// Package intentd holds what the whole module shares: the document of its API.
package intentd

import _ "embed"

// OpenAPI is openapi.yaml, the description of the HTTP API that the service
// serves at /openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI []byte
