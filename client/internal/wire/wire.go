// Package wire makes the API's requests. All of it is generated from
// openapi.yaml; what sends them, and reads the answers, is package client.
package wire
