// Package kubeconfig keeps clusters in kubeconfig files: it merges and removes them, in the files
// that kubectl would use, under kubectl's locks. It knows clusters only by the name of their
// context, which is the name of their cluster and user entries, too.
package kubeconfig

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/errs"
)

// extension is the extension of berth's contexts: other tools may use the same names.
const extension = "run.berth"

// FromAdmin returns the kubeconfig of one cluster from kubeadm's admin.conf. All entries get the
// name. server is the API's URL; empty keeps the one that nodes use.
func FromAdmin(admin []byte, name, server string) (*api.Config, error) {
	from, err := clientcmd.Load(admin)
	if err != nil {
		return nil, fmt.Errorf("cannot read the cluster's admin.conf: %w: %w", errs.Invalid, err)
	}
	if len(from.Clusters) != 1 || len(from.AuthInfos) != 1 || len(from.Contexts) != 1 {
		return nil, fmt.Errorf("cannot use the cluster's admin.conf: it has %d clusters, %d users and %d contexts; want one of each: %w",
			len(from.Clusters), len(from.AuthInfos), len(from.Contexts), errs.Invalid)
	}
	config := api.NewConfig()
	config.CurrentContext = name
	for _, cluster := range from.Clusters {
		if server != "" {
			cluster.Server = server
		}
		config.Clusters[name] = cluster
	}
	for _, user := range from.AuthInfos {
		config.AuthInfos[name] = user
	}
	for _, context := range from.Contexts {
		context.Cluster, context.AuthInfo = name, name
		context.Extensions = map[string]runtime.Object{extension: &runtime.Unknown{Raw: []byte(`{}`), ContentType: runtime.ContentTypeJSON}}
		config.Contexts[name] = context
	}
	return config, nil
}

// Server is the URL of an API that listens on an address of the host. If that is all addresses,
// clients on the host use loopback, which the certificate includes.
func Server(address string, port int) string {
	if ip, err := netip.ParseAddr(address); err == nil && ip.IsUnspecified() {
		address = "127.0.0.1"
		if ip.Is6() {
			address = "::1"
		}
	}
	return "https://" + net.JoinHostPort(address, strconv.Itoa(port))
}

// Render writes a kubeconfig as YAML.
func Render(config *api.Config) ([]byte, error) {
	text, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("cannot write kubeconfig: %w", err)
	}
	return text, nil
}

// holds reports whether a file has anything of the name.
func holds(config *api.Config, name string) bool {
	return config.Clusters[name] != nil || config.AuthInfos[name] != nil || config.Contexts[name] != nil || config.CurrentContext == name
}

// update changes a file's cluster and user of the name to those of another config: the server, unless it is internal, and
// the certificates and the key that are in the file. What the user has put in their place stays: a path, a token, or no
// verification. An entry with both would be invalid.
func update(config *api.Config, name string, to *api.Config, internal string) (changed bool) {
	if cluster, now := config.Clusters[name], to.Clusters[name]; cluster != nil {
		if cluster.Server != internal && cluster.Server != now.Server {
			cluster.Server, changed = now.Server, true
		}
		if replaceData(&cluster.CertificateAuthorityData, now.CertificateAuthorityData) {
			changed = true
		}
	}
	if user, now := config.AuthInfos[name], to.AuthInfos[name]; user != nil && len(user.ClientCertificateData) > 0 {
		certificate := replaceData(&user.ClientCertificateData, now.ClientCertificateData)
		key := replaceData(&user.ClientKeyData, now.ClientKeyData)
		changed = changed || certificate || key
	}
	return changed
}

// replaceData replaces data where there is some.
func replaceData(data *[]byte, by []byte) (changed bool) {
	if len(*data) == 0 || bytes.Equal(*data, by) {
		return false
	}
	*data = by
	return true
}

// drop removes the name's entries from a file; other contexts stay unchanged, even those that use
// them.
func drop(config *api.Config, name string) {
	delete(config.Clusters, name)
	delete(config.AuthInfos, name)
	delete(config.Contexts, name)
	if config.CurrentContext == name {
		config.CurrentContext = ""
	}
}
