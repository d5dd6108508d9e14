// Package netpolicy is what enforces NetworkPolicy objects in a cluster with berth's own network: the
// manifest of a DaemonSet that runs `berth net policy` of each node, with an account of its own.
package netpolicy

import (
	_ "embed"
	"fmt"
	"net"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

//go:embed manifest.yaml
var manifest string

// Manifest is the manifest of the DaemonSet, for kubectl apply. endpoint is the host and port at which
// nodes reach the API.
func Manifest(endpoint string) (string, error) {
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil {
		return "", fmt.Errorf("the endpoint of the API %q is not of the form HOST:PORT: %w: %w", endpoint, errs.Invalid, err)
	}
	return strings.NewReplacer("API_HOST", host, "API_PORT", port).Replace(manifest), nil
}

// CheckCommand is the command that finds out in a node whether it can enforce policies. An older berth
// in the node does not know it.
func CheckCommand() []string { return []string{"berth", "net", "policy", "--check"} }
