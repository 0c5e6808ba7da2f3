package intentd

import _ "embed"

// Compose is docker-compose.yml. The tests read in it which image of PostgreSQL
// they are to run on, so that it is named in one place.
//
//go:embed docker-compose.yml
var Compose []byte
