package runtimeconf

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/credential"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// HostsFile is one hosts.toml.
type HostsFile struct {
	// Dir is the folder's name below the registry directory.
	Dir     string
	Content string
	// Secret is true when credentials are in it.
	Secret bool
}

// Hosts writes the hosts.toml tree that berth and containerd read. credentials maps
// the files that the node file names to their content.
func Hosts(registries []nodefile.Registry, credentials map[string]string) ([]HostsFile, error) {
	files := make([]HostsFile, 0, len(registries))
	for i, reg := range registries {
		file, err := hosts(fmt.Sprintf("registries[%d]", i), reg, credentials)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// hosts writes the file of one registry, which is at a place of the description.
func hosts(at string, reg nodefile.Registry, credentials map[string]string) (HostsFile, error) {
	file := HostsFile{Dir: reg.Host}
	if reg.Host == "*" {
		file.Dir = "_default"
	}
	var b strings.Builder
	b.WriteString(header)
	server := hostServer(reg)
	if server != "" {
		fmt.Fprintf(&b, "\nserver = %s\n", quote(server))
		if err := hostBody(&b, access{server, reg.CA, reg.ClientCert, reg.ClientKey, reg.SkipVerify, reg.Credentials}, "", credentials); err != nil {
			return file, fmt.Errorf("%s.%w", at, err)
		}
	}
	for i, m := range reg.Mirrors {
		key := "host." + quote(m.URL)
		fmt.Fprintf(&b, "\n[%s]\ncapabilities = %s\n", key, quoteList(m.Capabilities))
		if m.OverridePath {
			b.WriteString("override_path = true\n")
		}
		if err := hostBody(&b, access{m.URL, m.CA, m.ClientCert, m.ClientKey, m.SkipVerify, m.Credentials}, key+".", credentials); err != nil {
			return file, fmt.Errorf("%s.mirrors[%d].%w", at, i, err)
		}
		file.Secret = file.Secret || m.Credentials != ""
	}
	file.Content = b.String()
	file.Secret = file.Secret || reg.Credentials != ""
	return file, nil
}

// hostServer is the registry itself. docker.io answers under another name.
func hostServer(reg nodefile.Registry) string {
	switch {
	case reg.Server != "" || reg.Host == "*":
		return reg.Server
	case reg.Host == "docker.io":
		return "https://registry-1.docker.io"
	default:
		return "https://" + reg.Host
	}
}

// access is how one server is reached.
type access struct {
	url         string
	ca          []string
	cert, key   string
	skipVerify  bool
	credentials string
}

// hostBody writes what the server and a mirror have in common. Order counts: the
// hosts are asked in the order of the file, so this is written by hand.
func hostBody(b *strings.Builder, a access, table string, credentials map[string]string) error {
	if len(a.ca) > 0 {
		fmt.Fprintf(b, "ca = %s\n", quoteList(a.ca))
	}
	switch {
	case a.cert != "" && a.key != "":
		fmt.Fprintf(b, "client = [[%s, %s]]\n", quote(a.cert), quote(a.key))
	case a.cert != "":
		fmt.Fprintf(b, "client = %s\n", quote(a.cert))
	}
	if a.skipVerify {
		b.WriteString("skip_verify = true\n")
	}
	if a.credentials == "" {
		return nil
	}
	value, err := authorization(a.credentials, a.url, credentials)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "\n[%sheader]\nAuthorization = %s\n", table, quote(value))
	return nil
}

// authorization makes the header for a server from what a credentials file holds.
func authorization(file, server string, credentials map[string]string) (string, error) {
	text, known := credentials[file]
	if !known {
		return "", fmt.Errorf("credentials: cannot read %s; write it: %w", file, errs.NotFound)
	}
	parsed, err := credential.Parse(file, text)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("credentials: %s: %w: %w", server, errs.Invalid, err)
	}
	header := parsed.Header(u.Host, true)
	if header == "" {
		return "", fmt.Errorf("credentials: %s has none for %s; want one beside those for %s: %w", file, u.Host, strings.Join(parsed.Hosts(), ", "), errs.NotFound)
	}
	return header, nil
}

// quote writes a TOML basic string; control characters do not get this far.
func quote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func quoteList(list []string) string {
	quoted := make([]string, len(list))
	for i, item := range list {
		quoted[i] = quote(item)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
