package runtimeconf

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
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
	for _, reg := range registries {
		file, err := hosts(reg, credentials)
		if err != nil {
			return nil, fmt.Errorf("registries: %s: %w", reg.Host, err)
		}
		files = append(files, file)
	}
	return files, nil
}

func hosts(reg nodefile.Registry, credentials map[string]string) (HostsFile, error) {
	file := HostsFile{Dir: reg.Host}
	if reg.Host == "*" {
		file.Dir = "_default"
	}
	var b strings.Builder
	b.WriteString(header)
	server := hostServer(reg)
	if server != "" {
		fmt.Fprintf(&b, "\nserver = %s\n", quote(server))
		if err := hostBody(&b, reg.CA, reg.ClientCert, reg.ClientKey, reg.SkipVerify, reg.Credentials, "", credentials); err != nil {
			return file, err
		}
	}
	for _, m := range reg.Mirrors {
		key := "host." + quote(m.URL)
		fmt.Fprintf(&b, "\n[%s]\ncapabilities = %s\n", key, quoteList(m.Capabilities))
		if m.OverridePath {
			b.WriteString("override_path = true\n")
		}
		if err := hostBody(&b, m.CA, m.ClientCert, m.ClientKey, m.SkipVerify, m.Credentials, key+".", credentials); err != nil {
			return file, err
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

// hostBody writes what the server and a mirror have in common. Order counts: the
// hosts are asked in the order of the file, so this is written by hand.
func hostBody(b *strings.Builder, ca []string, cert, key string, skipVerify bool, auth, table string, credentials map[string]string) error {
	if len(ca) > 0 {
		fmt.Fprintf(b, "ca = %s\n", quoteList(ca))
	}
	switch {
	case cert != "" && key != "":
		fmt.Fprintf(b, "client = [[%s, %s]]\n", quote(cert), quote(key))
	case cert != "":
		fmt.Fprintf(b, "client = %s\n", quote(cert))
	}
	if skipVerify {
		b.WriteString("skip_verify = true\n")
	}
	if auth == "" {
		return nil
	}
	value, err := authorization(auth, credentials)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "\n[%sheader]\nAuthorization = %s\n", table, quote(value))
	return nil
}

// authorization makes the header from what a credentials file holds.
func authorization(file string, credentials map[string]string) (string, error) {
	text, known := credentials[file]
	text = strings.TrimSpace(text)
	switch {
	case !known:
		return "", fmt.Errorf("credentials: cannot read %s: %w", file, errs.NotFound)
	case strings.ContainsAny(text, "\n\r"):
		return "", fmt.Errorf("credentials: %s has more than one line: %w", file, errs.Invalid)
	case strings.HasPrefix(text, "Bearer "), strings.HasPrefix(text, "Basic "):
		return text, nil
	case strings.Contains(text, ":"):
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)), nil
	default:
		return "", fmt.Errorf("credentials: %s: want user:password, Basic or Bearer: %w", file, errs.Invalid)
	}
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
