package api

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"intentd/internal/apikey"
	"intentd/internal/idempotency"
)

// The health checks, which need no credential.
const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

// routes is the whole surface. openapi.yaml describes it.
func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.logged)
	r.Use(middleware.GetHead) // RFC 9110, section 9.1: who serves GET serves HEAD
	r.NotFound(func(w http.ResponseWriter, r *http.Request) { s.fail(w, r, errNoRoute) })
	r.MethodNotAllowed(s.refuseMethod(r))

	r.Get(healthPath, s.serve(s.healthz))
	r.Get(readyPath, s.serve(s.readyz))
	r.Get("/openapi.yaml", s.openapi)

	docs := loadDocs()
	r.Get("/docs", docs.index.ServeHTTP)
	r.Get("/docs/errors", docs.errors.ServeHTTP)
	r.Get(docs.route(), docs.asset)

	// With and not Use: an unknown path is a 404 and a wrong method a 405, with
	// or without a credential.
	v1 := r.With(s.authenticate, s.limit, s.forMerchant)
	layer := idempotency.Options{
		Scope:   func(r *http.Request) string { return callerOf(r).scope() },
		Refuse:  func(w http.ResponseWriter, r *http.Request, ref *idempotency.Refusal) { s.fail(w, r, ref) },
		Observe: s.observe,
	}
	once := idempotency.Middleware(s.Idempotency, layer)
	layer.Interactive = true // for handlers that read before they write
	onceAsking := idempotency.Middleware(s.Idempotency, layer)
	v1.With(s.only("creating a payment intent", apikey.API), once).Post("/v1/payment_intents", s.serve(s.createIntent))
	v1.Get("/v1/payment_intents", s.read(s.listIntents))
	v1.Get("/v1/payment_intents/{id}", s.read(s.getIntent))
	v1.With(onceAsking).Post("/v1/payment_intents/{id}/cancel", s.serve(s.cancelIntent))
	v1.With(onceAsking).Post("/v1/payment_intents/{id}/transitions", s.serve(s.moveIntent))
	v1.Get("/v1/payment_intents/{id}/transitions", s.read(s.listTransitions))
	v1.Get("/v1/idempotency_keys", s.read(s.findKey))
	return r
}

// refuseMethod answers 405 with the Allow header that RFC 9110, section 15.5.6
// demands; chi leaves it out where the handler is not its own.
func (s *server) refuseMethod(routes chi.Routes) http.HandlerFunc {
	methods := []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	}
	return func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.EscapedPath()
		var allow []string
		for _, m := range methods {
			if routes.Match(chi.NewRouteContext(), m, path) {
				allow = append(allow, m)
			}
		}
		if allow == nil { // chi comes here for each method it does not know, wherever
			s.fail(w, r, errNoRoute)
			return
		}
		if i := slices.Index(allow, http.MethodGet); i >= 0 {
			allow = slices.Insert(allow, i+1, http.MethodHead)
		}
		s.fail(w, r, methodNotAllowed(r.Method, allow))
	}
}
