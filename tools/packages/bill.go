package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// writeBill writes the list of parts in the format SPDX 2.3: the release contains the binaries, and
// each depends on its modules, on Go's standard library, and the supervisor on C libraries.
func writeBill(o options, p parts, to string) error {
	const root = "Package-berth"
	digest := sha256.New()
	for _, b := range p.binaries {
		digest.Write([]byte(b.sha256))
	}
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: o.archiveName(),
		// The namespace must differ for each document.
		DocumentNamespace: homepage + "/spdx/" + o.archiveName() + "-" + hex.EncodeToString(digest.Sum(nil))[:32],
		CreationInfo: &spdx.CreationInfo{
			Created: o.date.Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "berth-packages"}},
		},
	}
	add := func(id string, p spdx.Package) {
		p.PackageSPDXIdentifier = common.ElementID(id)
		p.PackageLicenseConcluded, p.PackageCopyrightText = noAssertion, noAssertion
		if p.PackageDownloadLocation == "" {
			p.PackageDownloadLocation = noAssertion
		}
		doc.Packages = append(doc.Packages, &p)
	}
	relate := func(a, kind, b string) {
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", a), Relationship: kind, RefB: common.MakeDocElementID("", b),
		})
	}
	add(root, spdx.Package{PackageName: "berth", PackageVersion: o.version.text, PackageLicenseDeclared: "Apache-2.0", PackageHomePage: homepage, PrimaryPackagePurpose: "APPLICATION"})
	relate("DOCUMENT", common.TypeRelationshipDescribe, root)
	const standard = "Package-go-stdlib"
	add(standard, spdx.Package{
		PackageName: "stdlib", PackageVersion: strings.TrimPrefix(p.goVersion, "go"), PackageLicenseDeclared: "BSD-3-Clause",
		PackageExternalReferences: purl("pkg:golang/stdlib@" + strings.TrimPrefix(p.goVersion, "go")),
	})
	for _, l := range p.libraries {
		add("Package-"+l.name, spdx.Package{PackageName: l.name, PackageVersion: l.version, PackageLicenseDeclared: l.license, PackageSourceInfo: "linked statically from the package " + l.debian + " of the build machine"})
	}
	for _, m := range p.modules {
		license, err := m.spdx(p.cache)
		if err != nil {
			return err
		}
		add(m.id(), spdx.Package{
			PackageName: m.path, PackageVersion: m.version, PackageLicenseDeclared: license, PackageComment: "go.sum has " + m.sum,
			PackageExternalReferences: purl("pkg:golang/" + m.path + "@" + m.version),
		})
	}
	for _, b := range p.binaries {
		id := "Package-binary-" + b.name
		add(id, spdx.Package{
			PackageName: b.name, PackageVersion: o.version.text, PackageLicenseDeclared: "Apache-2.0", PackageFileName: b.name,
			PackageChecksums: []common.Checksum{{Algorithm: common.SHA256, Value: b.sha256}}, PrimaryPackagePurpose: "APPLICATION",
		})
		relate(root, common.TypeRelationshipContains, id)
		relate(id, common.TypeRelationshipDependsOn, standard)
		for _, m := range b.modules {
			relate(id, common.TypeRelationshipDependsOn, m.id())
		}
		for _, l := range p.libraries {
			if b.static {
				relate(id, common.TypeRelationshipDependsOn, "Package-"+l.name)
			}
		}
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	return errors.Join(json.Write(doc, out, json.Indent(" ")), out.Close())
}

// id is the module's identifier in the document, of the letters that SPDX allows.
func (m module) id() string {
	return "Package-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, m.path+"-"+m.version)
}

func purl(locator string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: locator}}
}
