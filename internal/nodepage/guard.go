package nodepage

import (
	"crypto/subtle"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// Access is who may see the page.
type Access struct {
	// Token is what clients must send; "" lets in every client that reaches the address.
	Token string
	// Hosts are the names and addresses, without a port, under which a browser may ask for the page. Another host in a
	// request is a page of somebody else whose name was made to lead here. Empty for any: over TLS a browser checks the
	// name by the certificate.
	Hosts []string
}

type access struct {
	current atomic.Pointer[Access]
	// busy has a value for each request under way.
	busy atomic.Int64
}

// SetAccess changes who may see the page; nil is nobody.
func (p *Page) SetAccess(a *Access) { p.access.current.Store(a) }

// requestsAtOnce bounds the requests under way. A page in a browser has one or two.
const requestsAtOnce = 32

// audience is what a path asks of its clients.
type audience int

const (
	public   audience = iota // no token
	private                  // the token in the header Authorization, as the script sends it
	prompted                 // the same; a browser without scripts asks the user for it
)

// guarded adds the rules that hold for every answer.
func (p *Page) guarded(who audience, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.access.busy.Add(1) > requestsAtOnce {
			p.access.busy.Add(-1)
			w.Header().Set("Retry-After", "2")
			http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
			return
		}
		defer p.access.busy.Add(-1)
		protect(w.Header())
		access := p.access.current.Load()
		switch {
		case access == nil:
			http.Error(w, "the page is off", http.StatusServiceUnavailable)
		case !access.knows(r.Host):
			http.Error(w, "the page has another name: use the address that `berth page` prints", http.StatusMisdirectedRequest)
		case who != public && fromElsewhere(r):
			http.Error(w, "another site may not ask for this", http.StatusForbidden)
		case who != public && !access.allows(r):
			if who == prompted {
				w.Header().Set("WWW-Authenticate", `Basic realm="berth: any name, and the token of berth page as password", charset="UTF-8"`)
			}
			http.Error(w, "the token is missing or wrong: `berth page` prints the address with it", http.StatusUnauthorized)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// protect sets the headers by which a browser keeps others away from the page, and scripts of others out of it.
func protect(h http.Header) {
	for name, value := range map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Cache-Control":                "no-store",
	} {
		h.Set(name, value)
	}
}

// knows reports whether a request's host is one of the page's.
func (a *Access) knows(host string) bool {
	if len(a.Hosts) == 0 {
		return true
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	for _, known := range a.Hosts {
		if strings.EqualFold(name, known) {
			return true
		}
	}
	return false
}

// fromElsewhere reports whether the browser says that another site has caused the request.
func fromElsewhere(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return true
}

// allows reports whether the request has the token: as a bearer's, or as the password of a browser.
func (a *Access) allows(r *http.Request) bool {
	if a.Token == "" {
		return true
	}
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer {
		_, token, _ = r.BasicAuth()
	}
	return subtle.ConstantTimeCompare([]byte(token), []byte(a.Token)) == 1
}
