// Package hoststoml writes hosts.toml, the file of a registry that berth and containerd
// read: where its images come from, in order. It also says what such a file has, and what is wrong in it.
// It knows the form of the file, and not who describes registries.
package hoststoml

import (
	"fmt"
	"strings"
)

// Name is that of the file in the directory of its registry.
const Name = "hosts.toml"

// File is one hosts.toml.
type File struct {
	// Registry is the registry itself, which is tried last. Its URL is empty if the file is for
	// many registries.
	Registry Server
	// Mirrors in the order in which they are tried.
	Mirrors []Mirror
}

// Server is how a server is reached. All but the URL may be empty.
type Server struct {
	// URL with its scheme.
	URL string
	// CA are files with certificates of authorities that sign for the server.
	CA []string
	// ClientCert and ClientKey are files of a certificate that is shown to the server; an
	// empty key is in the file of the certificate.
	ClientCert, ClientKey string
	// SkipVerify accepts any certificate of the server.
	SkipVerify bool
	// Authorization is the header of that name, whole. It is a secret.
	Authorization string
}

// Mirror is a server with its capabilities.
type Mirror struct {
	Server
	// Capabilities are pull, resolve and push.
	Capabilities []string
	// OverridePath says that the URL has the whole path: no /v2 is added.
	OverridePath bool
}

// Dir is the name of a registry's directory. "*" is every registry without one of its own.
func Dir(host string) string {
	if host == "*" {
		return "_default"
	}
	return host
}

// URL is the URL of the registry itself: server, if one is set. "*" has no URL, and docker.io has
// another host.
func URL(host, server string) string {
	switch {
	case server != "" || host == "*":
		return server
	case host == "docker.io":
		return "https://registry-1.docker.io"
	default:
		return "https://" + host
	}
}

// Text is the file's content. Mirrors are tried in the order of the text. An encoder would sort the
// tables, so Text does not use one.
func (f File) Text() string {
	var parts []string
	if f.Registry.URL != "" {
		parts = append(parts, fmt.Sprintf("server = %s\n", quote(f.Registry.URL))+f.Registry.body(""))
	}
	for _, m := range f.Mirrors {
		table := "host." + quote(m.URL)
		text := fmt.Sprintf("[%s]\ncapabilities = %s\n", table, quoteList(m.Capabilities))
		if m.OverridePath {
			text += "override_path = true\n"
		}
		parts = append(parts, text+m.body(table+"."))
	}
	return strings.Join(parts, "\n")
}

// body is what the registry and its mirrors have in common. table is the mirror's, with a
// dot at its end.
func (s Server) body(table string) string {
	var b strings.Builder
	if len(s.CA) > 0 {
		fmt.Fprintf(&b, "ca = %s\n", quoteList(s.CA))
	}
	switch {
	case s.ClientCert != "" && s.ClientKey != "":
		fmt.Fprintf(&b, "client = [[%s, %s]]\n", quote(s.ClientCert), quote(s.ClientKey))
	case s.ClientCert != "":
		fmt.Fprintf(&b, "client = %s\n", quote(s.ClientCert))
	}
	if s.SkipVerify {
		b.WriteString("skip_verify = true\n")
	}
	if s.Authorization != "" {
		fmt.Fprintf(&b, "\n[%sheader]\nAuthorization = %s\n", table, quote(s.Authorization))
	}
	return b.String()
}

// quote writes a basic string of TOML, which must not contain control characters.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func quoteList(list []string) string {
	quoted := make([]string, len(list))
	for i, item := range list {
		quoted[i] = quote(item)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
