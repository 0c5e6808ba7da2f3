package api

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"intentd/internal/idempotency"
)

// routes is the whole surface. openapi.yaml describes it.
func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	r.Use(s.logged)
	r.Use(middleware.GetHead) // RFC 9110, section 9.1: who serves GET serves HEAD
	r.NotFound(func(w http.ResponseWriter, r *http.Request) { fail(w, r, errNoRoute) })
	r.MethodNotAllowed(s.refuseMethod(r))

	r.Get("/healthz", serve(s.healthz))
	r.Get("/readyz", serve(s.readyz))
	r.Get("/openapi.yaml", s.openapi)

	// With and not Use: an unknown path is a 404 and a wrong method a 405, with
	// or without a credential.
	v1 := r.With(s.authenticate)
	once := v1.With(idempotency.Middleware(s.Idempotency, idempotency.Options{
		Scope:   merchantOf,
		Refuse:  func(w http.ResponseWriter, r *http.Request, ref *idempotency.Refusal) { fail(w, r, ref) },
		Observe: observe,
	}))
	once.Post("/v1/payment_intents", serve(s.createIntent))
	v1.Get("/v1/payment_intents/{id}", serve(s.getIntent))
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
			fail(w, r, errNoRoute)
			return
		}
		if i := slices.Index(allow, http.MethodGet); i >= 0 {
			allow = slices.Insert(allow, i+1, http.MethodHead)
		}
		fail(w, r, methodNotAllowed(r.Method, allow))
	}
}
