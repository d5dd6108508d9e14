package check

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

// maxLabelPart bounds each part of a label.
const maxLabelPart = 255

// checkSELinux judges the parts of a label; whether the host's policy knows them is
// found out there.
func checkSELinux(options *runtimeapi.SELinuxOption) error {
	const field = "config.linux.security_context.selinux_options."
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	for _, part := range []struct{ name, value, chars string }{
		{"user", options.GetUser(), letters},
		{"role", options.GetRole(), letters},
		{"type", options.GetType(), letters},
		{"level", options.GetLevel(), letters + ":,"},
	} {
		if len(part.value) > maxLabelPart || !onlyMadeOf(part.value, part.chars) {
			return fielderror.Invalid(field+part.name, "%q is not a part of a label", part.value)
		}
	}
	return nil
}

// onlyMadeOf reports whether every character of s is one of chars.
func onlyMadeOf(s, chars string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(chars, r) })
}
