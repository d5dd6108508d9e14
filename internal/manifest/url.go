package manifest

import (
	"net/url"
	"strings"
)

// URL checks an http(s) URL; empty is none. secret is the message for one with a password.
func (r *Reader) URL(at, text, secret string) {
	if text == "" || r.Broken(at) {
		return
	}
	u, err := url.Parse(text)
	switch {
	case !strings.HasPrefix(text, "http://") && !strings.HasPrefix(text, "https://"):
		r.Fault(at, "%q: has no scheme; want https://%s, or http:// if it is to be so", text, text)
	case err != nil || u.Host == "":
		r.Fault(at, "%q: want a URL such as https://mirror.example", text)
	case u.User != nil:
		r.Fault(at, "has a password in it; %s", secret)
	}
}
