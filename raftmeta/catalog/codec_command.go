package catalog

import (
	"slices"

	"github.com/rhumbdb/rhumb"
)

// wireCommand is the stored form of every command: a map with numbers as keys, which holds only the
// fields that the command has. A number is never reused for another field.
type wireCommand struct {
	Version       uint8           `cbor:"1,keyasint,omitempty"`
	Code          commandCode     `cbor:"2,keyasint"`
	Cluster       []byte          `cbor:"3,keyasint,omitempty"`
	Node          rhumb.NodeID    `cbor:"4,keyasint,omitempty"`
	Store         []byte          `cbor:"5,keyasint,omitempty"`
	Boot          rhumb.BootSeq   `cbor:"6,keyasint,omitempty"`
	Nonce         uint64          `cbor:"7,keyasint,omitempty"`
	Name          string          `cbor:"8,keyasint,omitempty"` // of the region or table
	Zone          string          `cbor:"9,keyasint,omitempty"`
	Location      *wirePoint      `cbor:"10,keyasint,omitempty"`
	Addr          string          `cbor:"11,keyasint,omitempty"`
	HeartbeatAddr string          `cbor:"12,keyasint,omitempty"`
	AdminAddr     string          `cbor:"13,keyasint,omitempty"`
	Binary        string          `cbor:"14,keyasint,omitempty"`
	Settings      *wireSettings   `cbor:"15,keyasint,omitempty"`
	Placements    []wirePlacement `cbor:"19,keyasint,omitempty"`
	Class         rhumb.ClassID   `cbor:"20,keyasint,omitempty"`
	Opened        uint32          `cbor:"21,keyasint,omitempty"`
	Range         *wireRangeID    `cbor:"22,keyasint,omitempty"`
	Epoch         rhumb.Epoch     `cbor:"23,keyasint,omitempty"`
	RangeVersion  uint64          `cbor:"24,keyasint,omitempty"`
	Members       []wireMember    `cbor:"25,keyasint,omitempty"`
	Nodes         []rhumb.NodeID  `cbor:"26,keyasint,omitempty"` // in-sync set, replicas or voters
	Preferred     rhumb.NodeID    `cbor:"27,keyasint,omitempty"`
	State         rhumb.NodeState `cbor:"28,keyasint,omitempty"`
	Items         []wireCommand   `cbor:"29,keyasint,omitempty"`

	commandOptions                 // 16, 17, 18 and 30
	Previous       uint64          `cbor:"31,keyasint,omitempty"` // nonce of the previous life
	Short          bool            `cbor:"32,keyasint,omitempty"`
	Region         rhumb.RegionID  `cbor:"40,keyasint,omitempty"`
	Vouched        []rhumb.NodeID  `cbor:"41,keyasint,omitempty"` // the nodes of Members that are vouched for
	End            rhumb.Seq       `cbor:"42,keyasint,omitempty"`
	EndTime        rhumb.Timestamp `cbor:"43,keyasint,omitempty"`
	Known          rhumb.Seq       `cbor:"44,keyasint,omitempty"`

	commandAccess                    // 60 to 69
	commandOperation                 // 150 to 169
	NodeName         string          `cbor:"50,keyasint,omitempty"` // in the certificate of the node
	Trust            []wireAuthority `cbor:"51,keyasint,omitempty"`
	Distrust         []string        `cbor:"52,keyasint,omitempty"`
	Revoked          *wireRevocation `cbor:"53,keyasint,omitempty"`
	GossipKeys       []wireGossipKey `cbor:"54,keyasint,omitempty"`
	GossipVersion    uint64          `cbor:"55,keyasint,omitempty"`
	Proof            *wireProof      `cbor:"56,keyasint,omitempty"`
	SplitAt          rhumb.Slot      `cbor:"57,keyasint,omitempty"`
	Merge            uint64          `cbor:"58,keyasint,omitempty"`
	Kept             bool            `cbor:"59,keyasint,omitempty"`
	Witness          bool            `cbor:"80,keyasint,omitempty"`
	Table            rhumb.TableID   `cbor:"70,keyasint,omitempty"`
	Distances        []wireDistance  `cbor:"71,keyasint,omitempty"`

	Relapses        uint32               `cbor:"143,keyasint,omitempty"`
	ClusterVersion  rhumb.ClusterVersion `cbor:"90,keyasint,omitempty"`
	PreviousVersion rhumb.ClusterVersion `cbor:"91,keyasint,omitempty"`
}

// EncodeCommand returns the stored form of a command.
func EncodeCommand(cmd Command) []byte {
	w := wireCommand{Version: commandVersion, Code: cmd.wireCode()}
	cmd.fillWire(&w)
	return encodeWire(w)
}

// DecodeCommand decodes what EncodeCommand returned. The kind of an error is Incompatible for an
// unknown version, code or field, and Corrupt otherwise. An incompatible command must stop the
// replica; skipping it would make the replica differ from the others.
func DecodeCommand(b []byte) (Command, error) {
	const op rhumb.Op = "catalog.DecodeCommand"
	var w wireCommand
	if err := decodeWire(op, b, &w); err != nil {
		return nil, err
	}
	if err := checkVersion(op, w.Version, commandVersion); err != nil {
		return nil, err
	}
	return w.toCommand()
}

func (c Init) fillWire(w *wireCommand) {
	c.First.fillWire(w)
	// The registration fills the cluster in as well, so the order matters.
	w.Cluster = fromUUID(c.Cluster)
	w.GossipKeys = toWireGossipKeys(c.Gossip)
}

func (c AddRegion) fillWire(w *wireCommand) { w.Name, w.Location = c.Name, toWirePoint(c.Location) }

func (c RegisterNode) fillWire(w *wireCommand) {
	w.Cluster, w.Node, w.Store, w.Boot, w.Nonce = fromUUID(c.Cluster), c.Node, fromUUID(c.Store), c.Boot, c.Nonce
	w.Previous, w.Short, w.NodeName, w.Witness = c.Previous, c.Short, c.Name, c.Witness
	w.Name, w.Zone, w.Addr, w.HeartbeatAddr, w.AdminAddr, w.Binary = c.Region, c.Zone, c.Addr, c.HeartbeatAddr, c.AdminAddr, c.Binary
	if c.HasLocation {
		w.Location = toWirePoint(c.Location)
	}
	if p := c.Proof; p != nil {
		w.Proof = &wireProof{p.At, p.Chain, p.Signature}
	}
}

func (c CreateClass) fillWire(w *wireCommand) {
	w.Settings, w.Placements = toWireSettings(c.Settings), fromPlacements(c.Placements)
}

func (c CreateTable) fillWire(w *wireCommand) {
	w.Name, w.Settings, w.Placements = c.Name, toWireSettings(c.Settings), fromPlacements(c.Placements)
	w.commandOptions = commandOptions(c.TableOptions)
}

func (c EnsureRegionBlocks) fillWire(w *wireCommand) {
	w.Class, w.Placements = c.Class, fromPlacements(c.Placements)
}

func (c OpenSlot) fillWire(w *wireCommand) {
	w.Node, w.Class, w.Opened, w.Nodes = c.Node, c.Class, c.Opened, c.Replicas
}

func (c AlterISR) fillWire(w *wireCommand) {
	w.Range, w.Epoch, w.RangeVersion = toWireRangeID(c.Range), c.Epoch, c.Version
	// wireMember is an array and cannot grow, so vouching is a list of its own.
	for _, m := range c.Members {
		w.Members = append(w.Members, wireMember{Node: m.Node, Boot: m.Boot})
		if m.Vouched {
			w.Vouched = append(w.Vouched, m.Node)
		}
	}
}

func (c Elect) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion, w.Node, w.Nodes = toWireRangeID(c.Range), c.Version, c.Node, c.InSync
}

func (c FenceNode) fillWire(w *wireCommand) { w.Node, w.Boot = c.Node, c.Boot }

func (c SetNodeState) fillWire(w *wireCommand) { w.Node, w.Boot, w.State = c.Node, c.Boot, c.State }

func (c SetReplicas) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion, w.Nodes, w.Preferred = toWireRangeID(c.Range), c.Version, c.Replicas, c.Preferred
}

func (c QuarantineReplica) fillWire(w *wireCommand) {
	w.Range, w.Node, w.Epoch = toWireRangeID(c.Range), c.Node, c.Epoch
}

func (c ReadmitReplica) fillWire(w *wireCommand) {
	w.Range, w.Node, w.Epoch = toWireRangeID(c.Range), c.Node, c.Epoch
}

func (c RecoverRange) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion, w.Node = toWireRangeID(c.Range), c.Version, c.Node
	w.End, w.EndTime, w.Known = c.End, c.EndTime, c.Known
}

func (c SetRegionDead) fillWire(w *wireCommand) { w.Region = c.Region }

func (c SetTrust) fillWire(w *wireCommand) {
	w.Trust, w.Distrust = toWireAuthorities(c.Trust), c.Distrust
}

func (c RevokeCertificate) fillWire(w *wireCommand) { w.Revoked = toWireRevocation(&c.Revocation) }
func (c RevokeBearer) fillWire(w *wireCommand)      { w.Revoked = toWireRevocation(&c.Revocation) }

func (c SetGossipKeys) fillWire(w *wireCommand) {
	w.GossipVersion, w.GossipKeys = c.Version, toWireGossipKeys(c.Keys)
}

func (c ForgetNode) fillWire(w *wireCommand) { w.Node, w.Boot, w.Empty = c.Node, c.Boot, c.Empty }

func (c SetClusterVersion) fillWire(w *wireCommand) {
	w.ClusterVersion, w.PreviousVersion, w.Nodes = c.Version, c.Previous, c.Without
}

func (c SetVoters) fillWire(w *wireCommand) { w.Nodes = c.Voters }

func (c PrepareHandover) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion, w.Node = toWireRangeID(c.Range), c.Version, c.Target
}

func (c AdoptHandover) fillWire(w *wireCommand) {
	w.Range, w.Epoch, w.Boot = toWireRangeID(c.Range), c.Epoch, c.Boot
}

func (c CancelHandover) fillWire(w *wireCommand) {
	w.Range, w.RangeVersion = toWireRangeID(c.Range), c.Version
}

func (c Batch) fillWire(w *wireCommand) {
	// The version of the batch covers its items.
	w.Items = make([]wireCommand, len(c.Commands))
	for i, cmd := range c.Commands {
		w.Items[i].Code = cmd.wireCode()
		cmd.fillWire(&w.Items[i])
	}
}

// commandDecoders maps each code to a function that returns the command of a wireCommand.
var commandDecoders = map[commandCode]func(w *wireCommand) Command{
	codeInit: func(w *wireCommand) Command {
		first := w.toRegisterNode()
		first.Cluster = rhumb.ClusterID{}
		return Init{Cluster: toUUID(w.Cluster), First: first, Gossip: fromWireGossipKeys(w.GossipKeys)}
	},
	codeAddRegion:    func(w *wireCommand) Command { return AddRegion{w.Name, w.Location.toPoint()} },
	codeRegisterNode: func(w *wireCommand) Command { return w.toRegisterNode() },
	codeCreateClass: func(w *wireCommand) Command {
		return CreateClass{w.Settings.toSettings(), toPlacements(w.Placements)}
	},
	codeCreateTable: func(w *wireCommand) Command {
		return CreateTable{
			Name: w.Name, Settings: w.Settings.toSettings(), TableOptions: rhumb.TableOptions(w.commandOptions),
			Placements: toPlacements(w.Placements),
		}
	},
	codeEnsureRegions: func(w *wireCommand) Command {
		return EnsureRegionBlocks{w.Class, toPlacements(w.Placements)}
	},
	codeOpenSlot: func(w *wireCommand) Command { return OpenSlot{w.Node, w.Class, w.Opened, w.Nodes} },
	codeAlterISR: func(w *wireCommand) Command {
		c := AlterISR{Range: w.Range.toRangeID(), Epoch: w.Epoch, Version: w.RangeVersion}
		for _, m := range w.Members {
			c.Members = append(c.Members, Member{m.Node, m.Boot, slices.Contains(w.Vouched, m.Node)})
		}
		return c
	},
	codeElect:        func(w *wireCommand) Command { return Elect{w.Range.toRangeID(), w.RangeVersion, w.Node, w.Nodes} },
	codeFenceNode:    func(w *wireCommand) Command { return FenceNode{w.Node, w.Boot} },
	codeSetNodeState: func(w *wireCommand) Command { return SetNodeState{w.Node, w.Boot, w.State} },
	codeSetReplicas: func(w *wireCommand) Command {
		return SetReplicas{w.Range.toRangeID(), w.RangeVersion, w.Nodes, w.Preferred}
	},
	codeQuarantineReplica: func(w *wireCommand) Command { return QuarantineReplica{w.Range.toRangeID(), w.Node, w.Epoch} },
	codeReadmitReplica:    func(w *wireCommand) Command { return ReadmitReplica{w.Range.toRangeID(), w.Node, w.Epoch} },
	codeRecoverRange: func(w *wireCommand) Command {
		return RecoverRange{w.Range.toRangeID(), w.RangeVersion, w.Node, w.End, w.EndTime, w.Known}
	},
	codeSetRegionDead: func(w *wireCommand) Command { return SetRegionDead{w.Region} },
	codeSetTrust: func(w *wireCommand) Command {
		return SetTrust{Trust: fromWireAuthorities(w.Trust), Distrust: w.Distrust}
	},
	codeRevokeCertificate: func(w *wireCommand) Command { return RevokeCertificate{w.Revoked.toRevocation()} },
	codeRevokeBearer:      func(w *wireCommand) Command { return RevokeBearer{w.Revoked.toRevocation()} },
	codeSetGossipKeys: func(w *wireCommand) Command {
		return SetGossipKeys{Version: w.GossipVersion, Keys: fromWireGossipKeys(w.GossipKeys)}
	},
	codeForgetNode: func(w *wireCommand) Command { return ForgetNode{w.Node, w.Boot, w.Empty} },
	codeSetVoters:  func(w *wireCommand) Command { return SetVoters{w.Nodes} },
	codePrepareHandover: func(w *wireCommand) Command {
		return PrepareHandover{w.Range.toRangeID(), w.RangeVersion, w.Node}
	},
	codeAdoptHandover:  func(w *wireCommand) Command { return AdoptHandover{w.Range.toRangeID(), w.Epoch, w.Boot} },
	codeCancelHandover: func(w *wireCommand) Command { return CancelHandover{w.Range.toRangeID(), w.RangeVersion} },
	codeSetClusterVersion: func(w *wireCommand) Command {
		return SetClusterVersion{w.ClusterVersion, w.PreviousVersion, w.Nodes}
	},
}

// toCommand returns the command that w holds.
func (w *wireCommand) toCommand() (Command, error) {
	const op rhumb.Op = "catalog.DecodeCommand"
	if w.Code == codeBatch {
		return w.toBatch()
	}
	take, ok := commandDecoders[w.Code]
	if !ok {
		take, ok = accessDecoders[w.Code]
	}
	if !ok {
		take, ok = operationDecoders[w.Code]
	}
	if !ok {
		take, ok = dropDecoders[w.Code]
	}
	if !ok {
		take, ok = spreadDecoders[w.Code]
	}
	if !ok {
		take, ok = splitDecoders[w.Code]
	}
	if !ok {
		take, ok = mergeDecoders[w.Code]
	}
	if !ok {
		take, ok = voteDecoders[w.Code]
	}
	if !ok {
		take, ok = relapseDecoders[w.Code]
	}
	if !ok {
		return nil, rhumb.Ef(op, rhumb.Incompatible, "command %d is unknown to this binary; use a newer one", w.Code)
	}
	// toUUID copies whatever fits, so a wrong length has to be found here.
	if n := len(w.Cluster); n != 0 && n != len(rhumb.UUID{}) {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "the cluster id has %d bytes instead of %d", n, len(rhumb.UUID{}))
	}
	if n := len(w.Store); n != 0 && n != len(rhumb.UUID{}) {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "the store id has %d bytes instead of %d", n, len(rhumb.UUID{}))
	}
	cmd := take(w)
	return cmd, checkRaise(cmd)
}

func (w *wireCommand) toBatch() (Command, error) {
	const op rhumb.Op = "catalog.DecodeCommand"
	if len(w.Items) > BatchMax {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "batch has %d commands; the limit is %d", len(w.Items), BatchMax)
	}
	b := Batch{Commands: make([]Command, len(w.Items))}
	for i := range w.Items {
		item := &w.Items[i]
		// A nested batch would evade BatchMax.
		if item.Code == codeBatch || item.Code == codeInit {
			return nil, rhumb.Ef(op, rhumb.Corrupt, "command %d is not allowed in a batch", i)
		}
		cmd, err := item.toCommand()
		if err != nil {
			return nil, err
		}
		b.Commands[i] = cmd
	}
	return b, nil
}

func (w *wireCommand) toRegisterNode() RegisterNode {
	c := RegisterNode{
		Cluster: toUUID(w.Cluster), Node: w.Node, Store: toUUID(w.Store), Boot: w.Boot, Nonce: w.Nonce, Previous: w.Previous, Short: w.Short,
		Region: w.Name, Zone: w.Zone, Location: w.Location.toPoint(), HasLocation: w.Location != nil,
		Addr: w.Addr, HeartbeatAddr: w.HeartbeatAddr, AdminAddr: w.AdminAddr, Binary: w.Binary,
		Name: w.NodeName, Witness: w.Witness,
	}
	if w.Proof != nil {
		c.Proof = &RegistrationProof{w.Proof.At, w.Proof.Chain, w.Proof.Signature}
	}
	return c
}

// fromUUID returns the bytes of a UUID, or nil for the zero UUID, which is then left out.
func fromUUID(u rhumb.UUID) []byte {
	if u.IsZero() {
		return nil
	}
	return u[:]
}

func toUUID(b []byte) (u rhumb.UUID) {
	copy(u[:], b)
	return u
}

func fromPlacements(ps []Placement) []wirePlacement {
	var out []wirePlacement
	for _, p := range ps {
		out = append(out, wirePlacement{Region: p.Region, Replicas: p.Replicas})
	}
	return out
}

func toPlacements(ws []wirePlacement) []Placement {
	var out []Placement
	for _, w := range ws {
		out = append(out, Placement{w.Region, w.Replicas})
	}
	return out
}
