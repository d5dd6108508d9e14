package nodefile

import (
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/manifest"
)

// Redact returns the text of a node file without what others must not read: contents of files that
// are not for everybody, values of environments, and passwords of proxies. seal returns the
// replacement of a value. A text without secrets is returned unchanged.
func Redact(text []byte, seal func(value string) string) ([]byte, error) {
	n, err := Load("", text)
	if err != nil {
		return nil, err
	}
	secrets := n.secrets()
	if len(secrets) == 0 {
		return text, nil
	}
	return manifest.Replace(text, func(value string) string {
		if slices.Contains(secrets, value) {
			return seal(value)
		}
		return value
	})
}

// secrets lists values that others must not read.
func (n *Node) secrets() []string {
	var list []string
	for _, f := range n.Files {
		if f.Content != "" && n.Private(f) {
			list = append(list, f.Content)
		}
	}
	for _, value := range n.Runtime.Environment {
		list = append(list, value)
	}
	for _, proxy := range []string{n.Proxy.HTTP, n.Proxy.HTTPS} {
		if u, err := url.Parse(proxy); err == nil && u.User != nil {
			list = append(list, proxy)
		}
	}
	return slices.DeleteFunc(list, func(value string) bool { return value == "" })
}

// Private reports whether others cannot read a file of the node file: by its mode, or by that of a
// directory of the node file that contains it.
func (n *Node) Private(f File) bool {
	if f.FileMode()&0o004 == 0 {
		return true
	}
	return slices.ContainsFunc(n.Files, func(dir File) bool {
		return dir.Type == "directory" && dir.FileMode()&0o001 == 0 && strings.HasPrefix(f.Path, path.Clean(dir.Path)+"/")
	})
}
