// Package configcheck checks the files that the daemon's configuration names, for `berth config check`, a reload and
// `berth doctor`. What is in the configuration itself, internal/config checks.
package configcheck

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/engine/basespec"
	"github.com/berthrun/berth/internal/engine/ioclass"
	"github.com/berthrun/berth/internal/engine/ocihooks"
	"github.com/berthrun/berth/internal/engine/seccomp"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image/decryption"
	"github.com/berthrun/berth/internal/image/lookaside"
	"github.com/berthrun/berth/internal/image/policy"
	"github.com/berthrun/berth/internal/image/registry/keyring"
	"github.com/berthrun/berth/internal/image/verifier"
	"github.com/berthrun/berth/internal/network/cni/conftemplate"
	"github.com/berthrun/berth/internal/nri"
	"github.com/berthrun/berth/internal/tlsfiles"
)

// report is that of a config.Check.
type report func(key, format string, args ...any)

// file reports a file that a key names, unless err is nil.
func (r report) file(key, path string, err error) {
	var fault *fs.PathError
	switch {
	case err == nil:
	case errors.Is(err, errs.NotFound), errors.Is(err, fs.ErrNotExist):
		r(key, "%q: no such file", path)
	case errors.As(err, &fault):
		r(key, "%q: %v", path, fault.Err)
	default:
		r(key, "%q: %s", path, errs.Message(err))
	}
}

// Files is the config.Check of the files that keys name. It checks a file if something fails on this machine without it.
// It ignores files that may come later, such as those with credentials, and files that have no effect.
func Files(cfg *config.Daemon, report func(key, format string, args ...any)) {
	checkContainers(cfg, report)
	checkImages(cfg, report)
	checkStart(cfg, report)
	if cfg.Stream.TLS != "off" {
		checkCertificates("stream.tls_cert", "stream.tls_key", "stream.tls_client_ca",
			tlsfiles.Files{CertFile: cfg.Stream.TLSCert, KeyFile: cfg.Stream.TLSKey, ClientCAFile: cfg.Stream.TLSClientCA}, report)
	}
	if cfg.Metrics.Listen != "" {
		checkCertificates("metrics.tls_cert_file", "metrics.tls_key_file", "metrics.client_ca_file",
			tlsfiles.Files{CertFile: cfg.Metrics.TLSCert, KeyFile: cfg.Metrics.TLSKey, ClientCAFile: cfg.Metrics.ClientCA}, report)
	}
	if cfg.Page.Listen != "" {
		checkCertificates("page.tls_cert_file", "page.tls_key_file", "page.client_ca_file",
			tlsfiles.Files{CertFile: cfg.Page.TLSCert, KeyFile: cfg.Page.TLSKey, ClientCAFile: cfg.Page.ClientCA}, report)
	}
	if cfg.Traces.Endpoint != "" {
		checkCertificates("traces.tls_cert_file", "traces.tls_key_file", "traces.tls_ca_file",
			tlsfiles.Files{CertFile: cfg.Traces.TLSCert, KeyFile: cfg.Traces.TLSKey, ClientCAFile: cfg.Traces.CA}, report)
	}
}

// Faults returns the faults that Files and more checks report, for those who have a configuration and not its file.
func Faults(cfg *config.Daemon, more ...config.Check) []error {
	var faults []error
	for _, check := range append([]config.Check{Files}, more...) {
		check(cfg, func(key, format string, args ...any) {
			faults = append(faults, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
		})
	}
	return faults
}

// checkContainers checks what containers are made with. They fail while a file cannot be used.
func checkContainers(cfg *config.Daemon, report report) {
	for key, path := range map[string]string{
		"runtime.seccomp_profile": cfg.Runtime.SeccompProfile, "runtime.privileged_seccomp_profile": cfg.Runtime.SeccompPrivileged,
	} {
		checkProfile(key, path, report)
	}
	if path := cfg.Default.Seccomp; filepath.IsAbs(path) {
		checkProfile("defaults.seccomp", path, report)
	}
	if cfg.Engine != "native" {
		return // the rest has no effect
	}
	checkHooks("runtime.hooks_dirs", cfg.Runtime.HookDirs, report)
	report.file("runtime.blockio_config_file", cfg.Runtime.BlockIOFile, ioclass.CheckFile(cfg.Runtime.BlockIOFile))
	for _, name := range slices.Sorted(maps.Keys(cfg.Handlers)) {
		h, key := cfg.Handlers[name], "handlers."+name
		checkProfile(key+".seccomp_profile", h.SeccompProfile, report)
		checkHooks(key+".hooks_dirs", h.HookDirs, report)
		report.file(key+".base_runtime_spec", h.BaseSpec, basespec.CheckFile(h.BaseSpec))
	}
}

func checkProfile(key, path string, report report) {
	if path != "" {
		report.file(key, path, seccomp.CheckFile(path))
	}
}

func checkHooks(key string, dirs []string, report report) {
	_, faults := new(ocihooks.Reader).Read(dirs)
	for _, fault := range faults {
		report(key, "%s", errs.Message(fault))
	}
}

// Credentials are the faults of image.credential_files, with the images that cannot be pulled for them. The daemon starts
// with them: each pull reads the files anew.
func Credentials(cfg *config.Daemon) []string {
	if cfg.Engine != "native" {
		return nil // they have no effect
	}
	keys, err := keyring.Read(cfg.Image.CredentialFiles)
	if err != nil {
		return []string{"image.credential_files: no image can be pulled: " + errs.Message(err)}
	}
	var all []string
	for _, fault := range keys.Faults() {
		all = append(all, "image.credential_files: no image of the host can be pulled: "+errs.Message(fault))
	}
	return all
}

// checkImages checks what decides on images. None may be used while it cannot be read. It also checks private keys, without
// which encrypted images cannot be used.
func checkImages(cfg *config.Daemon, report report) {
	if path := cfg.Image.Policy; path != "" {
		p, err := policy.Read(path)
		report.file("image.policy", path, err)
		if err == nil {
			for _, fault := range p.CheckKeys() {
				report("image.policy", "%s", errs.Message(fault))
			}
		}
	}
	if dir := cfg.Image.PolicyDir; dir != "" {
		for _, fault := range policy.CheckDir(dir) {
			report("image.policy_dir", "%s", errs.Message(fault))
		}
	}
	if _, err := lookaside.Read(cfg.Image.LookasideDir); err != nil && cfg.Image.Policy+cfg.Image.PolicyDir != "" {
		report("image.lookaside_dir", "%s", errs.Message(err))
	}
	if dir := cfg.Image.VerifierDir; dir != "" {
		_, err := verifier.Programs(dir)
		report.file("image.verifier_dir", dir, err)
	}
	// A directory that is not there may come later.
	if keys, err := decryption.Read(cfg.Image.DecryptionKeysDir); err == nil {
		for _, fault := range keys.Unused() {
			report("image.decryption_keys_dir", "%v", fault)
		}
	}
}

// checkStart checks files without which the daemon does not start.
func checkStart(cfg *config.Daemon, report report) {
	if path := cfg.Network.ConfTemplate; path != "" && cfg.Network.Mode == "cni" {
		_, err := conftemplate.Load(path)
		report.file("network.conf_template", path, err)
	}
	if path := cfg.Runtime.Supervisor; path != "" && cfg.Engine == "native" {
		info, err := os.Stat(path)
		if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
			err = fmt.Errorf("it is not a program: %w", errs.Invalid)
		}
		report.file("runtime.supervisor", path, err)
	}
	if cfg.NRI.Enabled && cfg.Engine == "native" {
		_, dir := cfg.NRIPlaces()
		_, faults := nri.Programs(dir, cfg.NRI.ConfigDir)
		for _, fault := range faults {
			report("nri.plugin_dir", "%s", errs.Message(fault))
		}
	}
}

// checkCertificates checks PEM files by the keys that name them.
func checkCertificates(certKey, secretKey, authoritiesKey string, files tlsfiles.Files, report report) {
	cert, secret, authorities := files.Check()
	report.file(certKey, files.CertFile, cert)
	report.file(secretKey, files.KeyFile, secret)
	report.file(authoritiesKey, files.ClientCAFile, authorities)
}
