package catalog

import (
	"github.com/rhumbdb/rhumb/access"
)

const (
	codeCreateUser commandCode = 40
	codeSetUser    commandCode = 41
	codeDropUser   commandCode = 42
	codeCreateRole commandCode = 43
	codeDropRole   commandCode = 44
	codeAssignRole commandCode = 45
	codeAlterGrant commandCode = 46

	codeRefuseSnapshot commandCode = 47
)

// CreateUser creates a user. A user of that name with the same verifier and roles, as a repetition
// finds it, is the result; another one is AlreadyExists. A role that does not exist is NotFound.
//
// Commands carry verifiers and never passwords: the log of the metadata group is on the disks of
// all voters, and is kept for a while.
type CreateUser struct {
	Name string
	// Verifier is zero for a user that logs in by certificate only. The catalog does not look into
	// it.
	Verifier access.Verifier
	Roles    []string
}

// SetUser changes the password of a user, or disables or enables the user. A user that does not
// exist is NotFound.
type SetUser struct {
	Name string
	// Verifier replaces the verifier unless it is nil. The zero verifier removes the password.
	Verifier *access.Verifier
	// Disabled disables or enables the user unless it is nil.
	Disabled *bool
}

// DropUser removes a user. A user that does not exist is NotFound.
type DropUser struct{ Name string }

// CreateRole creates a role without grants. A role of that name without grants is the result; a
// role with grants is AlreadyExists.
type CreateRole struct{ Name string }

// DropRole removes a role with its grants. It is a Conflict if users have the role, unless Cascade
// takes the role from them. A role that does not exist is NotFound.
type DropRole struct {
	Name    string
	Cascade bool
}

// AssignRole assigns a role to a user, or takes it away with Remove. It changes nothing if that is
// done already. A user or a role that does not exist is NotFound.
type AssignRole struct {
	User, Role string
	Remove     bool
}

// AlterGrant adds rights to the grant of a role in one scope and removes others from it. A grant
// that has no rights left is removed. Adding all but the removed rights sets a grant exactly. A
// role that does not exist is NotFound; the table of a scope need not exist.
//
// A command that sets all grants of a role at once was rejected: with two administrators, the later
// one would silently undo the earlier one.
type AlterGrant struct {
	Role        string
	Scope       access.Scope
	Add, Remove access.Rights
}

// RefuseSnapshot takes a table out of the images in shared memory for good. It changes nothing if
// that is done already. A table that does not exist is NotFound.
type RefuseSnapshot struct{ Table string }

func (RefuseSnapshot) wireCode() commandCode { return codeRefuseSnapshot }

func (CreateUser) wireCode() commandCode { return codeCreateUser }
func (SetUser) wireCode() commandCode    { return codeSetUser }
func (DropUser) wireCode() commandCode   { return codeDropUser }
func (CreateRole) wireCode() commandCode { return codeCreateRole }
func (DropRole) wireCode() commandCode   { return codeDropRole }
func (AssignRole) wireCode() commandCode { return codeAssignRole }
func (AlterGrant) wireCode() commandCode { return codeAlterGrant }
