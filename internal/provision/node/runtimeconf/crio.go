package runtimeconf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/registries"
)

// CRIO writes a drop-in of crio.conf.d.
func CRIO(m Model) (string, error) {
	top := table{}
	crio := sub(top, "crio")
	setText(crio, "root", m.Root)
	setText(crio, "storage_driver", m.Snapshotter)
	setText(sub(crio, "api"), "listen", m.Socket)
	setText(sub(crio, "image"), "pause_image", m.SandboxImage)
	setText(sub(crio, "network"), "network_dir", m.CNI.ConfDir)
	setList(sub(crio, "network"), "plugin_dirs", m.CNI.BinDirs)
	runtime := sub(crio, "runtime")
	setText(runtime, "log_level", m.LogLevel)
	runtime["cgroup_manager"], runtime["conmon_cgroup"] = "cgroupfs", "pod"
	if m.SystemdCgroup {
		runtime["cgroup_manager"], runtime["conmon_cgroup"] = "systemd", "system.slice"
	}
	runtime["selinux"] = m.SELinux
	runtime["cdi_spec_dirs"] = append([]string{}, m.CDISpecDirs...)
	setText(runtime, "default_runtime", m.DefaultHandler)
	runtimes := sub(runtime, "runtimes")
	for _, h := range m.Handlers {
		runtimes[h.Name] = crioHandler(h)
	}
	// CRI-O has one built-in handler, crun or runc by its version, and does not start with an
	// unknown default handler.
	if _, there := runtimes[m.DefaultHandler]; !there && m.DefaultHandler != "" {
		runtimes[m.DefaultHandler] = table{"runtime_type": "oci"}
	}
	crioNRI(sub(crio, "nri"), m.NRI)
	prune(top)
	if err := add(top, m.Additions); err != nil {
		return "", err
	}
	return render(top)
}

func crioHandler(h nodefile.Handler) table {
	t := table{"runtime_type": "oci"}
	if h.Type == "shim" {
		t["runtime_type"] = "vm"
	}
	setText(t, "runtime_path", h.Path)
	setText(t, "runtime_root", h.Root)
	setText(t, "runtime_config_path", h.ConfigPath)
	setList(t, "allowed_annotations", h.PodAnnotations)
	if h.PrivilegedWithoutHost {
		t["privileged_without_host_devices"] = true
	}
	for name, value := range h.Options {
		t[name] = value
	}
	return t
}

func crioNRI(t table, nri nodefile.NRI) {
	if nri.Enabled != nil {
		t["enable_nri"] = *nri.Enabled
	}
	setText(t, "nri_listen", nri.Socket)
	setDuration(t, "nri_plugin_registration_timeout", nri.RegistrationTimeout)
	setDuration(t, "nri_plugin_request_timeout", nri.RequestTimeout)
}

// CRIORegistries writes a drop-in of containers-registries.conf.
func CRIORegistries(all []registries.Registry) (string, error) {
	var entries []table
	for _, reg := range all {
		entry := table{"prefix": reg.Host, "location": location(reg.Server, reg.Host)}
		if insecure(reg.Server, reg.SkipVerify) {
			entry["insecure"] = true
		}
		var mirrors []table
		for _, m := range reg.Mirrors {
			mirror := table{"location": location(m.URL, "")}
			if insecure(m.URL, m.SkipVerify) {
				mirror["insecure"] = true
			}
			mirrors = append(mirrors, mirror)
		}
		if mirrors != nil {
			entry["mirror"] = mirrors
		}
		entries = append(entries, entry)
	}
	return render(table{"registry": entries})
}

// location is a URL without its scheme.
func location(url, fallback string) string {
	if url == "" {
		return fallback
	}
	_, rest, _ := strings.Cut(url, "://")
	return strings.TrimSuffix(rest, "/")
}

// hostOnly cuts the path off a location.
func hostOnly(location string) string {
	host, _, _ := strings.Cut(location, "/")
	return host
}

func insecure(url string, skipVerify bool) bool {
	return skipVerify || strings.HasPrefix(url, "http://")
}

// CertFile is a link at the path where a runtime looks for a certificate.
type CertFile struct {
	// Path is where the runtime looks, Target what the node file names.
	Path, Target string
}

// CertLinks lists the certificates that CRI-O and docker find by place, below dir
// (/etc/containers/certs.d, /etc/docker/certs.d). A host that is named more than once
// gets the authorities of all; two client certificates for it are an error of kind
// errs.Invalid.
func CertLinks(dir string, all []registries.Registry) ([]CertFile, error) {
	c := certs{dir: dir, authorities: map[string][]string{}, clients: map[string][2]string{}}
	for i, reg := range all {
		at := fmt.Sprintf("registries[%d]", i)
		if err := c.add(location(reg.Server, reg.Host), reg.CA, reg.ClientCert, reg.ClientKey); err != nil {
			return nil, fmt.Errorf("%s.clientCert: %w", at, err)
		}
		for j, m := range reg.Mirrors {
			if err := c.add(location(m.URL, ""), m.CA, m.ClientCert, m.ClientKey); err != nil {
				return nil, fmt.Errorf("%s.mirrors[%d].clientCert: %w", at, j, err)
			}
		}
	}
	return c.links, nil
}

// certs gathers the links of all hosts.
type certs struct {
	dir   string
	links []CertFile
	// authorities are the files that a host has so far, clients its certificate and key.
	authorities map[string][]string
	clients     map[string][2]string
}

func (c *certs) add(location string, ca []string, cert, key string) error {
	host := hostOnly(location)
	for _, file := range ca {
		if known := c.authorities[host]; !slices.Contains(known, file) {
			c.links = append(c.links, CertFile{fmt.Sprintf("%s/%s/ca-%d.crt", c.dir, host, len(known)), file})
			c.authorities[host] = append(known, file)
		}
	}
	if cert == "" {
		return nil
	}
	if key == "" {
		key = cert
	}
	switch old, known := c.clients[host]; {
	case known && old != [2]string{cert, key}:
		return fmt.Errorf("%s has two client certificates, %s and %s, and one place for them; leave one out: %w", host, old[0], cert, errs.Invalid)
	case !known:
		c.clients[host] = [2]string{cert, key}
		c.links = append(c.links,
			CertFile{fmt.Sprintf("%s/%s/client.cert", c.dir, host), cert}, CertFile{fmt.Sprintf("%s/%s/client.key", c.dir, host), key})
	}
	return nil
}
