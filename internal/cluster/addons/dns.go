package addons

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// corednsConfig is the ConfigMap of the cluster's DNS, which kubeadm writes.
const corednsConfig = "coredns"

// preferUDP makes CoreDNS query the nodes' name servers over UDP, also for pods that query over
// TCP: the name server of podman on Debian 12 listens on UDP only, and pods would get SERVFAIL.
// CoreDNS repeats over TCP a query whose answer is too long for UDP.
func (i Installer) preferUDP(ctx context.Context) error {
	data, err := i.API.ReadConfigMap(ctx, corednsConfig)
	if errors.Is(err, errs.NotFound) {
		return nil // a cluster file may leave CoreDNS out
	}
	if err != nil {
		return err
	}
	text := withPreferUDP(data["Corefile"])
	if text == data["Corefile"] {
		return nil
	}
	data["Corefile"] = text
	if err := i.API.WriteConfigMap(ctx, corednsConfig, data); err != nil {
		return fmt.Errorf("cannot have CoreDNS prefer UDP: %w", err)
	}
	return nil
}

// withPreferUDP returns a Corefile with the option in the block for the nodes' name servers.
func withPreferUDP(corefile string) string {
	const block = "forward . /etc/resolv.conf {\n"
	before, after, found := strings.Cut(corefile, block)
	if !found || strings.Contains(after, "prefer_udp") {
		return corefile
	}
	return before + block + "       prefer_udp\n" + after
}
