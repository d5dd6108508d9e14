package registries

import (
	"fmt"
	"regexp"

	"github.com/berthrun/berth/internal/manifest"
)

// host is a registry in the name of an image, or "*".
const host = `^(\*|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?)$`

// Check reports what is wrong with registries as faults of the document r. at is the path of
// the list. The caller checks the paths of files, which are on the machine of its document.
func Check(r *manifest.Reader, at string, all []Registry) {
	form := regexp.MustCompile(host)
	seen := map[string]bool{}
	for i, reg := range all {
		at := fmt.Sprintf("%s[%d]", at, i)
		if reg.Host != "" && !r.Broken(at+".host") && !form.MatchString(reg.Host) {
			r.Fault(at+".host", "%q: want a host with an optional port, such as docker.io, or *", reg.Host)
		}
		if seen[reg.Host] && reg.Host != "" {
			r.Fault(at+".host", "%q: is there twice; leave one out", reg.Host)
		}
		seen[reg.Host] = true
		if reg.Host == "*" && reg.Server != "" {
			r.Fault(at+".server", "%q: has no place under *, which stands for many registries; leave this out", reg.Server)
		}
		checkServer(r, at, at+".server", reg.Server, reg.Access)
		for j, m := range reg.Mirrors {
			at := fmt.Sprintf("%s.mirrors[%d]", at, j)
			checkServer(r, at, at+".url", m.URL, m.Access)
		}
	}
}

// checkServer checks one server. at is the path of its entry, atURL that of its URL.
func checkServer(r *manifest.Reader, at, atURL, url string, a Access) {
	r.URL(atURL, url, "use credentials")
	if a.ClientCert == "" && a.ClientKey != "" {
		r.Fault(at+".clientKey", "is of no use alone; set clientCert, too")
	}
}
