"""Add the table of orders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "orders",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("email", sa.String(), nullable=False),
        sa.Column("invoice", sa.String()),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("orders")
