"""Reads an ``mcp.json`` and similar files into frozen models. No other package reads a configuration file."""

from __future__ import annotations

from holdfast._exports import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.config.client_import import (
        ImportPlan as ImportPlan,
        ImportRow as ImportRow,
        PointingPlan as PointingPlan,
        UndoPlan as UndoPlan,
        entry_secrets as entry_secrets,
        plan_import as plan_import,
        plan_pointing as plan_pointing,
        plan_undoing as plan_undoing,
        still_pointed as still_pointed,
    )
    from holdfast.config.conditions import (
        LARGEST_ARGUMENTS as LARGEST_ARGUMENTS,
        CallFacts as CallFacts,
        Condition as Condition,
        Unjudged as Unjudged,
        each_key_once as each_key_once,
    )
    from holdfast.config.config_files import (
        PROJECT_FILES as PROJECT_FILES,
        TrustStore as TrustStore,
        config_to_edit as config_to_edit,
        find_config as find_config,
        is_named as is_named,
        read_config as read_config,
        rewrite_config as rewrite_config,
        servers_in as servers_in,
        settings_in as settings_in,
        variables_in as variables_in,
        write_whole as write_whole,
    )
    from holdfast.config.definition import Definition as Definition, steers as steers
    from holdfast.config.expand import looks_secret as looks_secret
    from holdfast.config.fields import InvalidValue as InvalidValue, parse_duration as parse_duration
    from holdfast.config.file_edit import (
        Backups as Backups,
        ClientFile as ClientFile,
        FileEdit as FileEdit,
        rename_key as rename_key,
        replace_value as replace_value,
        set_member as set_member,
    )
    from holdfast.config.jsonc import Document as Document, KeyPath as KeyPath, joined as joined, parse as parse
    from holdfast.config.known_clients import (
        CLIENTS as CLIENTS,
        ClientLocation as ClientLocation,
        ClientPaths as ClientPaths,
        KnownClient as KnownClient,
        Scope as Scope,
        client_named as client_named,
    )
    from holdfast.config.own_folders import (
        state_folder as state_folder,
        state_folder_name as state_folder_name,
        user_folder_names as user_folder_names,
        user_folders as user_folders,
    )
    from holdfast.config.read import (
        ConfigReading as ConfigReading,
        config_from_mapping as config_from_mapping,
        load_config as load_config,
        parse_config as parse_config,
        read_file as read_file,
        spec_from_connection as spec_from_connection,
    )
    from holdfast.config.settings import (
        AccessRule as AccessRule,
        AccessSettings as AccessSettings,
        ApprovalMode as ApprovalMode,
        ApprovalSettings as ApprovalSettings,
        AuditSettings as AuditSettings,
        CallPolicy as CallPolicy,
        ExtAuthzSettings as ExtAuthzSettings,
        LargeResultSettings as LargeResultSettings,
        Limits as Limits,
        LoadPolicy as LoadPolicy,
        QuotaSettings as QuotaSettings,
        RoleHolders as RoleHolders,
        RoleSettings as RoleSettings,
        Settings as Settings,
        ToolsMode as ToolsMode,
    )
    from holdfast.config.spec import (
        IDENTITY_HEADERS as IDENTITY_HEADERS,
        UNIX as UNIX,
        AssertionService as AssertionService,
        Config as Config,
        CredentialLadder as CredentialLadder,
        ExchangeService as ExchangeService,
        HeaderSource as HeaderSource,
        OAuthSettings as OAuthSettings,
        ServerSpec as ServerSpec,
        Target as Target,
        Targets as Targets,
        TokenService as TokenService,
        ToolFilter as ToolFilter,
        Transport as Transport,
        id_in_folder as id_in_folder,
        is_key_text as is_key_text,
        targets_of as targets_of,
    )

__getattr__, __dir__ = lazy_exports(__name__)
