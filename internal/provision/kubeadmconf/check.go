package kubeadmconf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berthrun/berth/internal/errs"
)

// check requires a name and an address that kubeadm accepts, and a kubeadm that reads v1beta4.
func (n Node) check() error {
	var faults []error
	if n.Name != "" && !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`).MatchString(n.Name) {
		faults = append(faults, fmt.Errorf("name of the node %q: want small letters, digits, - and dots: %w", n.Name, errs.Invalid))
	}
	if addr, err := netip.ParseAddr(n.Address); n.Address != "" && (err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsLoopback()) {
		faults = append(faults, fmt.Errorf("address %q: want one that other nodes reach: %w", n.Address, errs.Invalid))
	}
	return errors.Join(append(faults, n.checkVersion())...)
}

// checkVersion requires a kubeadm that reads v1beta4, which came with 1.31.
func (n Node) checkVersion() error {
	v, err := version.ParseSemantic(n.Version)
	if err == nil && v.LessThan(version.MustParseSemantic("v1.31.0")) {
		return fmt.Errorf("the machine has Kubernetes %s, whose kubeadm does not read %s; install 1.31 or newer: %w", n.Version, apiVersion, errs.Unsupported)
	}
	return nil
}

func (i Init) check(n Node) error {
	var faults []error
	switch _, err := version.ParseSemantic(i.Version); {
	case i.Version == "":
		// kubeadm would ask a server on the internet for the newest version.
		faults = append(faults, fmt.Errorf("the version of Kubernetes is not known: the machine has neither kubeadm nor a kubelet that reports it; want --kubernetes-version, such as v1.36.3: %w", errs.Invalid))
	case err != nil:
		faults = append(faults, fmt.Errorf("--kubernetes-version %q: want one such as v1.36.3: %w", i.Version, errs.Invalid))
	}
	if i.Endpoint != "" {
		faults = append(faults, checkEndpoint("--control-plane-endpoint", i.Endpoint))
	}
	if i.Token != "" {
		faults = append(faults, checkToken(i.Token))
	}
	_, err := subnets("--pod-network-cidr", i.PodSubnet)
	faults = append(faults, err)
	if i.ServiceSubnet == "" {
		i.ServiceSubnet = defaultServices
	}
	services, err := subnets("--service-cidr", i.ServiceSubnet)
	if addr, bad := netip.ParseAddr(n.Address); err == nil && bad == nil && addr.Is4() != services[0].Addr().Is4() {
		err = fmt.Errorf("the API server advertises %s, and services are in %s; want --service-cidr with the address's family first: %w", n.Address, i.ServiceSubnet, errs.Invalid)
	}
	return errors.Join(append(faults, err)...)
}

func (j Join) check() error {
	faults := []error{checkEndpoint("the API server", j.Endpoint), checkToken(j.Token)}
	switch {
	case len(j.Hashes) == 0 && !j.SkipCA:
		faults = append(faults, fmt.Errorf("the node has no certificate hash to verify the cluster with; want --discovery-token-ca-cert-hash, which `kubeadm token create --print-join-command` prints: %w", errs.Invalid))
	case len(j.Hashes) > 0 && j.SkipCA:
		faults = append(faults, fmt.Errorf("--discovery-token-unsafe-skip-ca-verification conflicts with --discovery-token-ca-cert-hash; leave one of them out: %w", errs.Invalid))
	}
	for _, hash := range j.Hashes {
		if !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(hash) {
			faults = append(faults, fmt.Errorf("--discovery-token-ca-cert-hash %q: want sha256: and 64 hexadecimal digits: %w", hash, errs.Invalid))
		}
	}
	if j.CertificateKey != "" {
		switch {
		case !j.ControlPlane:
			faults = append(faults, fmt.Errorf("--certificate-key is for a node of the control plane; add --control-plane, or leave it out: %w", errs.Invalid))
		case !regexp.MustCompile(`^([0-9a-f]{32}|[0-9a-f]{48}|[0-9a-f]{64})$`).MatchString(j.CertificateKey):
			faults = append(faults, fmt.Errorf("--certificate-key: want the key that `kubeadm init phase upload-certs --upload-certs` prints: %w", errs.Invalid))
		}
	}
	return errors.Join(faults...)
}

// checkToken does not quote the token, nor a half of it: it is a secret.
func checkToken(token string) error {
	if regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(token) {
		return nil
	}
	if token == "" {
		return fmt.Errorf("there is no token; want --token or --token-file; `kubeadm token create` on a control plane creates one: %w", errs.Invalid)
	}
	return fmt.Errorf("the token is not one of kubeadm's: want six small letters and digits, a dot, and sixteen more: %w", errs.Invalid)
}

func checkEndpoint(what, text string) error {
	host, port, err := net.SplitHostPort(text)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil || number == 0 || !regexp.MustCompile(`^[A-Za-z0-9.:-]+$`).MatchString(host) {
		return fmt.Errorf("%s %q: want host:port, such as 192.0.2.10:6443: %w", what, text, errs.Invalid)
	}
	return nil
}

// subnets reads one CIDR, or one of each family.
func subnets(what, text string) ([]netip.Prefix, error) {
	if text == "" {
		return nil, nil
	}
	var list []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(part)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%s %q: want a CIDR such as 10.244.0.0/16: %w", what, part, errs.Invalid)
		}
		list = append(list, p)
	}
	if len(list) > 2 || len(list) == 2 && list[0].Addr().Is4() == list[1].Addr().Is4() {
		return nil, fmt.Errorf("%s %q: want one CIDR, or one of each family: %w", what, text, errs.Invalid)
	}
	return list, nil
}
